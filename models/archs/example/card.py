"""The card of the template. A real one also has presets: starting jobs, as in the other folders' cards."""

from models.arch import Arch
from models.spec import Spec, entry


class ExampleOptions(Spec):
    """`model_kwargs`. An arch that has none leaves `options` out of its card."""

    max_text_length: int = entry(
        512,
        title="Text length",
        section="Advanced",
        order=80,
        ge=1,
        le=4096,
        unit="tokens",
        encodes=("text",),  # latents stay as they are: those in the cache are used whatever it is
        help="Longer captions are cut.",
    )


ARCHS = [
    Arch(
        name="example",
        label="Example",
        description="A minimal DiT with a VAE and a language model as text encoder: the template for new architectures.",
        capabilities=("vae",),
        code="models.archs.example.model:ExampleModel",
        options=ExampleOptions,
        samplers=("euler", "heun"),
        bucket_divisibility=16,
        starts_from=("folder", "saved"),
        defaults={"sample": {"width": 1024, "height": 1024}},
    )
]
