"""What runs jobs: the processes of a worker, and `python -m worker.run`."""

import gc

# Importing torch, diffusers and transformers makes half a million objects that all stay, and a full collection walks over all that are
# there: by default six times on the way to the first step, a tenth of its CPU seconds. Young objects are collected as ever; what a part
# of a model leaves behind is collected when its memory is given back (`models.memory.give_back`).
FULL_COLLECTIONS_APART = (
    200  # in collections of the middle generation, of which the way to a first step takes 100; Python's own is 10
)

gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTIONS_APART)
