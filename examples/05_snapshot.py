# The ring as a dict in the layout of PyTorch's Flight Recorder, for code that reads that.
#
#     python examples/05_snapshot.py

import torch
import torch.distributed as dist

import fr


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for size in (1, 10, 100):
        dist.all_reduce(torch.ones(size))
    trace = fr.snapshot(include_stack_traces=False)
    print("version", trace["version"])
    for entry in trace["entries"]:
        print(entry["profiling_name"], entry["input_sizes"], entry["state"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
