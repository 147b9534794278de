"""The data set and the model that both scripts train: a small GPT on made-up text."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS = 8192, 256, 1024, 8, 16


class Text(torch.utils.data.Dataset):
    """Sequences of tokens; reading one costs some 2 ms of NumPy, as a tokenizer would."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        noise = np.random.default_rng(index)
        tokens = noise.integers(0, VOCABULARY, LENGTH)
        for _ in range(3):  # stands for decoding and augmentation
            noise.permutation(np.sort(noise.standard_normal(4096)))
        return torch.from_numpy(tokens)


class Layer(nn.Module):
    """Causal attention and a feed-forward network."""

    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        batch, length, _ = x.shape
        split = self.qkv(self.before_attention(x)).view(batch, length, 3, HEADS, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.before_mlp(x))


class Model(nn.Module):
    """Returns the loss of predicting each next token."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        logits = self.head(self.layers(self.embedding(tokens[:, :-1])))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
