"""Toy PyTorch networks, good and bad, as factories: ``tests.export.toys:NAME``."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

SIZE = 16
PLAIN = {"size": SIZE, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3), "mode": "squash"}


class Net(nn.Module):
    """A small convolutional classifier."""

    def __init__(self, classes=7, head=None):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.AdaptiveAvgPool2d(1)
        )
        self.head = head or nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


class Baked(Net):
    """Reshapes to two rows, whatever the batch."""

    def forward(self, x):
        return self.head(self.body(x).reshape(2, -1))


class Dropping(Net):
    """Drops values in eval mode too."""

    def forward(self, x):
        return self.head(F.dropout(self.body(x).flatten(1), 0.5, training=True))


class TrainingStatistics(Net):
    """Normalises by its batch even in eval mode."""

    def forward(self, x):
        x = self.body(x).flatten(1)
        return self.head((x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-3).sqrt())


class Branching(Net):
    """Decides in Python on values of its input."""

    def forward(self, x):
        y = self.body(x).flatten(1)
        return self.head(y if float(x.min()) > -100 else -y)


class Segmenter(nn.Module):
    """Gives a dict, as torchvision's segmenters do."""

    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, classes, 3, 2, 1)

    def forward(self, x):
        y = F.interpolate(self.conv(x), size=x.shape[-2:], mode="bilinear", align_corners=False)
        return {"out": y, "aux": y * 0}


class ToyVit(nn.Module):
    """Patches, a class token, and position embeddings resized (bicubic, antialiased) to the input, as DINOv2 does."""

    def __init__(self, native=32, patch=8, width=24):
        super().__init__()
        self.grid = native // patch
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 1 + self.grid**2, width))
        self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        tokens = self.patches(x)
        height, width = tokens.shape[-2:]
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), tokens.flatten(2).transpose(1, 2)], dim=1)
        return self.norm(self.block(tokens + self.positions(height, width)))[:, 0]

    def positions(self, height, width):
        if (height, width) == (self.grid, self.grid):
            return self.position
        grid = self.position[:, 1:].reshape(1, self.grid, self.grid, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(height, width), mode="bicubic", antialias=True, align_corners=False)
        return torch.cat([self.position[:, :1], grid.flatten(2).transpose(1, 2)], dim=1)


def classifier():
    return Net(), PLAIN


def no_preprocessing():
    return Net()


def embedder():
    return Net(head=nn.Identity()), PLAIN


def left_in_training_mode():
    return Net(head=nn.Sequential(nn.Dropout(0.5), nn.Linear(16, 7))).train(), PLAIN


def baked():
    return Baked(), PLAIN


def dropping():
    return Dropping(), PLAIN


def training_statistics():
    return TrainingStatistics(), PLAIN


def branching():
    return Branching(), PLAIN


def nan_weights():
    net = Net()
    net.head.weight.data[3, 3] = float("nan")
    return net, PLAIN


def segmenter():
    return Segmenter(5), PLAIN


class ClassIds(Segmenter):
    """Gives integer class ids itself."""

    def forward(self, x):
        return super().forward(x)["out"].argmax(1)


def class_ids():
    return ClassIds(5), PLAIN


def too_many_classes():
    return Segmenter(300), PLAIN


def vit_native():
    return ToyVit(), {**PLAIN, "size": 32}


def vit_larger():
    return ToyVit(), {**PLAIN, "size": 48}


def bgr_mean():
    """Mean level of each channel, in the order that the network sees."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return net, {"size": 8, "mode": "squash", "mean": (0, 0, 0), "std": (1, 1, 1), "color_order": "bgr"}


def big():
    """2.2 GB of weights, more than protobuf can hold."""
    width = 13_500
    wide = [nn.Linear(width, width, bias=False) for _ in range(3)]
    return Net(head=nn.Sequential(nn.Linear(16, width), *wide, nn.Linear(width, 10))), PLAIN


def not_a_module():
    return "resnet50"


def failing():
    raise OSError("no such checkpoint")
