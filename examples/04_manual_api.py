# Recording by hand, for a communication library that no capture layer sees. Needs no torch.
#
#     FR_DUMP_DIR=/tmp/fr-manual python examples/04_manual_api.py
#     frtrace -j /tmp/fr-manual

import fr


def exchange_halo(group) -> None:
    # A block: the operation ends when the block does, with an error if it raises.
    with fr.record(group, "halo_exchange"):
        pass  # mylib.exchange(...)


def start_reduce(group):
    # begin and end, for what is issued here and completes elsewhere, on any thread.
    return fr.begin(group, "reduce")


def main() -> None:
    group = fr.group("ring", [0], desc="my ring")
    exchange_halo(group)
    ticket = start_reduce(group)
    fr.end(ticket)
    start_reduce(group)  # never ends: in the dump it is still in flight
    print(fr.dump(reason="example"))


if __name__ == "__main__":
    main()
