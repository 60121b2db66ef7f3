"""Decoders: encoded samples in, one uint8 batch at the model's input size out."""

from .interface import DecodeMode, DecodeOptions, Decoder, Truncated
from .make import DecoderName, make_decoder

__all__ = ["DecodeMode", "DecodeOptions", "Decoder", "DecoderName", "Truncated", "make_decoder"]
