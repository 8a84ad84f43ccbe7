# Sends every dump elsewhere once it is safe on disk: object storage, chat, a pager.
#
#     FR_DUMP_DIR=/tmp/fr-writer python examples/07_writer.py

import threading

import fr

sent = threading.Event()


def upload(data: bytes, info: dict) -> None:
    """Runs on a thread of its own, never on one that trains."""
    print(f"uploading {len(data)} bytes", info)
    sent.set()


def main() -> None:
    fr.register_writer(upload)
    with fr.record(fr.group("world", [0]), "all_reduce"):
        pass
    fr.dump(reason="example")
    sent.wait(timeout=10)


if __name__ == "__main__":
    main()
