"""Convolutions, the gradients of their inputs and of their filters, and the columns that the stem reads."""

from __future__ import annotations

import dataclasses

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from cclfp.engine.kernels.triton_others import MULTIPROCESSORS, add_up, few, launch, relu


@triton.jit
def conv_kernel(
    x, w, y, x2, w2, residual, mask, scale, shift, partial, R, HB,
    IN: tl.constexpr, OUT: tl.constexpr, KS: tl.constexpr, S: tl.constexpr, DGRAD: tl.constexpr, RELU: tl.constexpr,
    BI: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A convolution of replica r, or the gradient of its input: BN channels of BI images x BH rows x BW columns.

    x, y, residual and mask are viewed as (N, H/s, s, W/s, s*R*C), so that a stride, or the parity of a pixel, is a
    coordinate. With stride 2 a gradient has four parities, each with its own taps. Then the kernel does, in this order
    and where given: add another gradient (x2, w2: 1x1, stride 2), scale and shift, add the residual, ReLU, set to zero
    where the mask is not positive, and write the tile's sums of values and squares to partial (tiles, 2, R*OUT).
    """
    BM: tl.constexpr = BI * BH * BW
    blocks: tl.constexpr = OUT // BN
    steps: tl.constexpr = IN // BK
    tile = tl.program_id(0) // blocks
    r = tl.program_id(1)
    k0 = tl.program_id(0) % blocks * BN
    n0 = tile // HB * BI
    h0 = tile % HB * BH
    if DGRAD and S == 2:
        parity = 3 - tl.program_id(2)  # the parities with the most taps first
        ph = parity // 2
        pw = parity % 2
        taps_h = 1 + ph
        taps_w = 1 + pw
    else:
        parity = 0
        ph = 0
        pw = 0
        taps_h = KS
        taps_w = KS
    acc = tl.zeros((BN, BM), tl.float32)
    for i in range(taps_h * taps_w * steps):
        t = i // steps
        c = i % steps * BK
        a = t // taps_w
        b = t % taps_w
        if DGRAD:
            if S == 2:
                tap = (1 - ph + 2 * a) * KS + 1 - pw + 2 * b
                dh = ph - a
                dw = pw - b
            else:
                tap = t
                dh = KS // 2 - a
                dw = KS // 2 - b
            filters = w.load([r * IN + c, tap * OUT + k0]).T
            pixels = x.load([n0, h0 + dh, 0, dw, r * IN + c])
        else:
            dh = a - KS // 2
            dw = b - KS // 2
            filters = w.load([r * OUT + k0, t * IN + c])
            column = ((dw & (S - 1)) * R + r) * IN + c
            pixels = x.load([n0, h0 + (dh >> (S - 1)), dh & (S - 1), dw >> (S - 1), column])
        acc = tl.dot(filters, pixels.reshape(BM, BK).T, acc)
    if x2 is not None:
        for i in range(tl.where(parity == 0, steps, 0)):
            filters = w2.load([r * IN + i * BK, k0]).T
            pixels = x2.load([n0, h0, 0, 0, r * IN + i * BK])
            acc = tl.dot(filters, pixels.reshape(BM, BK).T, acc)
    channels = r * OUT + k0 + tl.arange(0, BN)
    column = (pw * R + r) * OUT + k0
    if scale is not None:
        acc = acc * tl.load(scale + channels)[:, None] + tl.load(shift + channels)[:, None]
    if residual is not None:
        acc += residual.load([n0, h0, ph, 0, column]).reshape(BM, BN).T.to(tl.float32)
    if RELU:
        acc = relu(acc)
    if mask is not None:
        acc = tl.where(mask.load([n0, h0, ph, 0, column]).reshape(BM, BN).T.to(tl.float32) <= 0, 0.0, acc)
    values = acc.to(y.dtype)
    if partial is not None:
        rounded = values.to(tl.float32)
        tl.store(partial + tile * 2 * R * OUT + channels, tl.sum(rounded, 1))
        tl.store(partial + (tile * 2 + 1) * R * OUT + channels, tl.sum(rounded * rounded, 1))
    y.store([n0, h0, ph, 0, column], values.T.reshape(BI, BH, 1, BW, BN))


@triton.jit
def filter_gradient_kernel(
    x, dy, dw, R, HB, TILES, C: tl.constexpr, K: tl.constexpr, KS: tl.constexpr, S: tl.constexpr,
    BI: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """dw[part, k, tap, c]: the sum over the pixels of a part of dy[pixel, k] * x[pixel shifted by the tap, c]."""
    BP: tl.constexpr = BI * BH * BW
    blocks: tl.constexpr = C // BN
    t = tl.program_id(1) // PARTS
    part = tl.program_id(1) % PARTS
    r = tl.program_id(2)
    k0 = tl.program_id(0) // blocks * BM
    c0 = tl.program_id(0) % blocks * BN
    dh = t // KS - KS // 2
    dw_ = t % KS - KS // 2
    column = ((dw_ & (S - 1)) * R + r) * C + c0
    acc = tl.zeros((BM, BN), tl.float32)
    per = tl.cdiv(TILES, PARTS)
    for i in range(part * per, tl.minimum(part * per + per, TILES)):
        g = dy.load([i * BP, r * K + k0])
        pixels = x.load([i // HB * BI, i % HB * BH + (dh >> (S - 1)), dh & (S - 1), dw_ >> (S - 1), column])
        acc = tl.dot(g.T, pixels.reshape(BP, BN), acc)
    dw.store([(part * R + r) * K + k0, t * C + c0], acc)


@triton.jit
def columns_kernel(x, out, stride, R, N, H, W, BM: tl.constexpr):
    """out[n, h, w, r, (kh, kw, c)]: the 3x3 neighbourhoods of images x[r, n, c, h, w], padded from 27 to 32 columns."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    r = tl.program_id(1)
    j = tl.arange(0, 32)
    n = m // (H * W)
    h = (m // W % H)[:, None] + (j // 9 - 1)[None, :]
    w = (m % W)[:, None] + (j // 3 % 3 - 1)[None, :]
    ok = (m < N * H * W)[:, None]
    inside = ok & (j < 27)[None, :] & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    v = tl.load(x + r * stride + ((n[:, None] * 3 + (j % 3)[None, :]) * H + h) * W + w, mask=inside, other=0.0)
    tl.store(out + (m * R + r)[:, None] * 32 + j[None, :], v.to(out.dtype.element_ty), mask=ok)


@dataclasses.dataclass(frozen=True)
class Conv:
    """The shape of a convolution: C to K channels, ks x ks taps, from images of ``side`` pixels to side / stride."""

    C: int
    K: int
    ks: int
    stride: int
    side: int

    @property
    def out(self) -> int:
        return self.side // self.stride


def _tile(side: int, pixels: int) -> tuple[int, int, int]:
    """The images, rows and columns of a tile with this many pixels: whole rows, then whole images."""
    rows = max(1, min(side, pixels // side))
    return max(1, pixels // (side * rows)), rows, side


def _images(t: Tensor, s: int, block: list[int]) -> TensorDescriptor:
    """A descriptor that views (N, H, W, X) as (N, H/s, s, W/s, s*X)."""
    N, H, W, X = t.shape
    return TensorDescriptor(t, [N, H // s, s, W // s, s * X], [H * W * X, s * W * X, W * X, s * X, 1], block)


def _conv_blocks(conv: Conv, OUT: int, images: int, N: int) -> tuple[int, int, int, int]:
    """Channels and pixels per tile, warps and stages: large tiles, if they give enough programs."""
    if OUT == 64:
        return 64, 128, 4, 3
    bi, bh, _ = _tile(conv.out, 128)
    programs = triton.cdiv(N, bi) * (conv.out // bh) * (OUT // 128) * images
    if programs >= MULTIPROCESSORS * 2 // 3:
        return 128, 128, 8, (3 if programs >= MULTIPROCESSORS else 4)
    return 128, 64, 4, 5


def _filter_blocks(conv: Conv, R: int, N: int) -> tuple[int, int, int, int, int]:
    """Output and input channels per tile, warps, stages, and the number of parts in which the pixels are summed."""
    bm, bn = (128, 128) if conv.C >= 128 else (64, min(conv.C, 64))
    programs, parts = (conv.K // bm) * (conv.C // bn) * conv.ks**2 * R, 1
    enough = 2 * MULTIPROCESSORS if bm == 64 else MULTIPROCESSORS * 2 // 3
    while programs * parts < enough and N * conv.out**2 >= 512 * parts:
        parts *= 2
    warps, stages = (8, 4) if bm == 128 and programs >= enough else (4, 3)
    return bm, bn, warps, stages, parts


def convolve(
    conv: Conv, R: int, x: Tensor, w: Tensor, *, gradient: bool = False, statistics: bool = False, relu: bool = False,
    x2: Tensor | None = None, w2: Tensor | None = None, residual: Tensor | None = None, mask: Tensor | None = None,
    scale: Tensor | None = None, shift: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The convolution of x or, with ``gradient``, the gradient of its input, where x is the gradient of its output.

    :func:`conv_kernel` describes the operations after the convolution. With ``statistics`` the second result is the
    sums of values and squares per channel, as T partial sums: (T, 2, R*K).
    """
    IN, OUT = (conv.K, conv.C) if gradient else (conv.C, conv.K)
    s_in, s_out = (1, conv.stride) if gradient else (conv.stride, 1)
    N, side, parities = len(x), conv.out * s_out, conv.stride**2 if gradient else 1

    bn, pixels, warps, stages = _conv_blocks(conv, OUT, R * parities, N)
    (bi, bh, bw), bk = _tile(conv.out, pixels), min(64, IN)
    y = x.new_empty(N, side, side, R * OUT)
    tiles = triton.cdiv(N, bi) * (conv.out // bh)
    partial = x.new_empty(tiles, 2, R * OUT, dtype=torch.float32) if statistics else None

    def given(t: Tensor | None) -> TensorDescriptor | None:
        return None if t is None else _images(t, s_out, [bi, bh, 1, bw, bn])

    taken = [bi, bh, 1, bw, bk]
    launch(
        conv_kernel, (tiles * (OUT // bn), R, parities),
        _images(x, s_in, taken), TensorDescriptor.from_tensor(w, [bk, bn] if gradient else [bn, bk]), given(y),
        None if x2 is None else _images(x2, 1, taken),
        None if w2 is None else TensorDescriptor.from_tensor(w2, [bk, bn]),
        given(residual), given(mask), scale, shift, partial, R, conv.out // bh,
        IN=IN, OUT=OUT, KS=conv.ks, S=conv.stride, DGRAD=gradient, RELU=relu,
        BI=bi, BH=bh, BW=bw, BN=bn, BK=bk, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y, None if partial is None else few(partial)


def filter_gradient(conv: Conv, R: int, x: Tensor, dy: Tensor) -> Tensor:
    """The gradient of the filters, as a matrix (R*K, taps*C) in float32."""
    taps, N = conv.ks**2, len(x)
    bm, bn, warps, stages, parts = _filter_blocks(conv, R, N)
    bi, bh, bw = _tile(conv.out, 64)
    dw = x.new_empty(parts, R * conv.K, taps * conv.C, dtype=torch.float32)
    launch(
        filter_gradient_kernel, ((conv.K // bm) * (conv.C // bn), taps * parts, R),
        _images(x, conv.stride, [bi, bh, 1, bw, bn]),
        TensorDescriptor.from_tensor(dy.view(-1, R * conv.K), [bi * bh * bw, bm]),
        TensorDescriptor.from_tensor(dw.flatten(0, 1), [bm, bn]),
        R, conv.out // bh, triton.cdiv(N, bi) * (conv.out // bh),
        C=conv.C, K=conv.K, KS=conv.ks, S=conv.stride, BI=bi, BH=bh, BW=bw, BM=bm, BN=bn, PARTS=parts,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return dw[0] if parts == 1 else add_up(dw)


def columns(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The 3x3 neighbourhoods of images (R, N, 3, H, W) as (N, H, W, R*32): the stem is a 1x1 convolution of them."""
    R, N, _, H, W = x.shape
    x = x if x[0].is_contiguous() else x.contiguous()
    out = x.new_empty(N, H, W, R * 32, dtype=dtype)
    launch(columns_kernel, (triton.cdiv(N * H * W, 64), R), x, out, x.stride(0), R, N, H, W, BM=64)
    return out
