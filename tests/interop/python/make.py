"""Makes the files in this folder from ../lz4/*.raw; see ../README.md."""

import pathlib

import lz4.block
import lz4.frame

HERE = pathlib.Path(__file__).parent
SIZES = {"64k": 4, "256k": 5, "1m": 6, "4m": 7}

for raw in sorted((HERE.parent / "lz4").glob("*.raw")):
    name, body = raw.stem, raw.read_bytes()
    (HERE / f"{name}.block.lz4").write_bytes(lz4.block.compress(body, store_size=True))
    for size, number in SIZES.items():
        for linked in (False, True):
            for extras in (False, True):
                packed = lz4.frame.compress(
                    body,
                    block_size=number,
                    block_linked=linked,
                    content_checksum=extras,
                    block_checksum=extras,
                    store_size=not extras,
                )
                mode = "linked" if linked else "independent"
                kind = "checksums" if extras else "length"
                (HERE / f"{name}.frame-{size}-{mode}-{kind}.lz4").write_bytes(packed)

(HERE / "two-frames.lz4").write_bytes(lz4.frame.compress(b"one") + lz4.frame.compress(b"two"))
