"""The OpenVINO engine under another name, for tests of the registry."""

from tidal.engines.openvino import FILE, STORED_AS, compile_engine, open_engines

__all__ = ["FILE", "STORED_AS", "compile_engine", "open_engines"]
