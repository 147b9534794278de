"""The same training with the three faults of train.py repaired; each repair has a comment."""

import argparse

import torch
from model import Model, Text

import stepscope


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = torch.utils.data.DataLoader(
        Text(),
        batch_size=options.batch,
        # input starvation: worker processes prepare batches while the GPU computes
        num_workers=4,
        persistent_workers=True,
        pin_memory=device == "cuda",
    )
    batches = iter(loader)
    times = stepscope.step_time()
    for number in range(options.steps):
        stepscope.step()
        times.step()
        with stepscope.range("dataload"):
            tokens = next(batches)
        with stepscope.range("h2d"):
            tokens = tokens.to(device, non_blocking=True)
        # low precision unused: the GEMMs run on the tensor cores
        with stepscope.range("forward"), torch.autocast(device, torch.bfloat16):
            loss = model(tokens)
        with stepscope.range("backward"):
            loss.backward()
        with stepscope.range("metrics"):
            # host synchronization: one result stays on the GPU, and is read every tenth step
            norms = torch.stack(torch._foreach_norm([p.grad for p in model.parameters()]))
        with stepscope.range("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        if number % 10 == 9:
            print(f"loss {loss.item():.3f}, largest gradient {norms.max().item():.3f}")
    stepscope.annotate.end_steps()
    times.step()
    print(times.summary(skip=10))


if __name__ == "__main__":
    main()
