"""Seeds from what a number is for, so that batching, accumulation and resumes change none of them."""

import hashlib


def seed_for(*parts: object) -> int:
    """A 63-bit seed that depends only on `parts` (the job's seed, a step, a sample's place, a word)."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
