"""vdali: batch vision inference, from millions of encoded images to embeddings, labels and masks."""

__version__ = "0.1.0"
