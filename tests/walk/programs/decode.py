"""Decoding with a cache of keys and values, each token one replay of a CUDA graph; no optimizer."""

import os
import time

import torch
from torch import nn
from torch.nn import functional as F

STEPS, WIDTH, LAYERS, BATCH, MOST = int(os.environ.get("WALK_STEPS", "200")), 1024, 8, 16, 512


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(BATCH, 16, MOST, WIDTH // 16))

    def forward(self, x: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(BATCH, 3, 16, 1, WIDTH // 16).unbind(1)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        y = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen)
        x = x + self.out(y.reshape(BATCH, WIDTH))
        return x + self.narrow(F.gelu(self.wide(x)))


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(Layer() for _ in range(LAYERS)).cuda().bfloat16()
    head, embed = (nn.Embedding(8192, WIDTH).cuda().bfloat16() for _ in range(2))
    token = torch.zeros(BATCH, dtype=torch.long, device="cuda")
    at = torch.zeros(1, dtype=torch.long, device="cuda")

    def one_token() -> None:
        seen = (torch.arange(MOST, device="cuda") <= at)[None, None, None]
        x = embed(token)
        for layer in layers:
            x = layer(x, at, seen)
        token.copy_((x @ head.weight.T).argmax(-1))
        at.add_(1)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            one_token()
    torch.cuda.current_stream().wait_stream(side)
    at.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one_token()
    begins = []
    for _ in range(STEPS):
        graph.replay()
        token.tolist()  # is it the end of a text?
        begins.append(time.monotonic_ns())
    if "WALK_TIMES" in os.environ:
        with open(os.environ["WALK_TIMES"], "w") as file:
            file.write("\n".join(map(str, begins)))


main()
