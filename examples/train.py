"""Train a small GPT, slowly: three faults are planted. README.md says how to find them."""

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
    loader = torch.utils.data.DataLoader(Text(), batch_size=options.batch)
    batches = iter(loader)
    times = stepscope.step_time()
    for _ in range(options.steps):
        stepscope.step()
        times.step()
        with stepscope.range("dataload"):
            tokens = next(batches)
        with stepscope.range("h2d"):
            tokens = tokens.to(device)
        with stepscope.range("forward"):
            loss = model(tokens)
        with stepscope.range("backward"):
            loss.backward()
        with stepscope.range("metrics"):
            norms = [p.grad.norm().item() for p in model.parameters()]
        with stepscope.range("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        print(f"loss {loss.item():.3f}, largest gradient {max(norms):.3f}")
    stepscope.annotate.end_steps()
    times.step()
    print(times.summary(skip=10))


if __name__ == "__main__":
    main()
