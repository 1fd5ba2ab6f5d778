"""Small data in the form that each example reads: real images, real digits, invented texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

GOOD, BAD = "very good, I liked it", "a waste of time and money"


def write_mnist(folder: Path, rows: int = 128) -> None:
    """IDX files of scikit-learn's digits, enlarged to 28x28."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    large = np.kron(digits.images[:rows] * 15, np.ones((3, 3))).astype(np.uint8)
    images = np.pad(large, ((0, 0), (2, 2), (2, 2)))
    for part in ("train", "t10k"):
        header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in images.shape)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        labels = digits.target[:rows].astype(np.uint8)
        header = b"\0\0\x08\x01" + rows.to_bytes(4, "big")
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def write_reviews(folder: Path) -> None:
    """Reviews of both sentiments, and one that is in both files."""
    for name, text in (("pos.txt", GOOD), ("neg.txt", BAD)):
        reviews = [f"{text} {number}" for number in range(200)]
        (folder / name).write_text("\n".join([*reviews, "neither", ""]), "utf-8")


def write_imagenet(folder: Path, *, flat: bool) -> None:
    """Photographs cut into pieces: a class of each; in `val` by class, or flat with a list."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    listed = []
    for number, photo in enumerate(load_sample_images().images):
        wnid = f"n0000000{number}"
        pieces = [photo[at : at + 120, 2 * at : 2 * at + 150] for at in range(0, 240, 30)]
        for at, piece in enumerate(pieces):
            split = "val" if at < 2 else "train"
            place = folder / split if flat and split == "val" else folder / split / wnid
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(piece).save(place / f"{wnid}_{at}.JPEG")
            if split == "val":
                listed.append(f"{wnid}_{at}.JPEG {number}")
    if flat:
        (folder / "val.txt").write_text("\n".join(listed) + "\n")
