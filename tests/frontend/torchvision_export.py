"""Detection models of torchvision with random weights, exported by torch; run as a program.

    python torchvision_export.py NAME FILE

torchvision's compiled operators may be missing, or fit another torch: the ones that its models call
are declared here, with results of the right shapes, which is all that an export needs.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch

_DECLARED = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
    "SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
)


def _kept(dets: torch.Tensor, _: torch.Tensor, __: float) -> torch.Tensor:
    return torch.arange(len(dets))


def _cut(x: torch.Tensor, rois: torch.Tensor, _: float, height: int, width: int,
         __: int, ___: bool) -> torch.Tensor:  # fmt: skip
    return torch.zeros(len(rois), x.shape[1], height, width)


def _yes() -> bool:
    return True


def _fine() -> None:
    pass


def declare() -> Any:
    """torchvision, with the operators that its detection models need."""
    library = torch.library.Library("torchvision", "DEF")
    for text in _DECLARED:
        library.define(text)
    for name in ("nms", "qnms"):
        library.impl(name, _kept, "CPU")
    library.impl("roi_align", _cut, "CPU")
    import torchvision
    import torchvision.ops._register_onnx_ops
    from torchvision.models import detection  # noqa: F401

    for module in [m for k, m in sys.modules.items() if k.startswith("torchvision.")]:
        if hasattr(module, "_has_ops"):
            module._has_ops = _yes
        if hasattr(module, "_assert_has_ops"):
            module._assert_has_ops = _fine
    return library, torchvision


def _spread(module: Any) -> None:
    """Give a model weights with which many boxes have scores that differ: the default ones are so
    small that all are the same."""
    norms = []
    for part in module.modules():
        if isinstance(part, torch.nn.Conv2d | torch.nn.Linear):
            torch.nn.init.kaiming_normal_(part.weight)
        elif isinstance(part, torch.nn.BatchNorm2d):  # what images make of the layers before it
            norms.append(part.train())
            part.momentum = None
    images = [torch.rand(3, *size) for size in ((320, 320), (240, 400), (200, 160), (320, 320))]
    module.backbone(module.transform(images)[0].tensors)
    for part in norms:
        part.eval()
    for part in module.modules():
        if isinstance(getattr(part, "cls_score", None), torch.nn.Linear):
            part.cls_score.bias[0] = -100  # never background
    for part in module.modules():  # boxes stay near their anchors
        for field in ("bbox_pred", "regression_head"):
            for layer in getattr(part, field, torch.nn.Identity()).modules():
                if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
                    layer.weight.mul_(0.1)


def export(name: str, path: str) -> None:
    """Write a model whose input `image` is [3, h, w]."""
    library, vision = declare()
    torch.manual_seed(0)
    make = getattr(vision.models.detection, name)
    module = make(weights=None, weights_backbone=None).eval()
    with torch.no_grad():
        _spread(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, ([torch.rand(3, 320, 320)],), path, dynamo=False, opset_version=16,
            input_names=["image"], dynamic_axes={"image": {1: "h", 2: "w"}},
        )  # fmt: skip
    del library


if __name__ == "__main__":
    export(*sys.argv[1:])
