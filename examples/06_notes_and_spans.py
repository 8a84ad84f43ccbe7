# Breadcrumbs: what a blamed rank was doing. The verdict shows its last note, open spans and step.
#
#     FR_DUMP_DIR=/tmp/fr-notes python examples/06_notes_and_spans.py
#     frtrace --json /tmp/fr-notes

import fr


def train(steps: int) -> None:
    group = fr.group("world", [0])
    for step in range(steps):
        fr.step(step)
        with fr.span("load batch"):
            fr.note(f"shard-{step % 3:04d}.tar")
        with fr.record(group, "all_reduce"):
            pass
    with fr.span("save checkpoint"):
        fr.note("uploading part 7 of 12")
        print(fr.dump(reason="example"))


if __name__ == "__main__":
    train(steps=100)
