"""The HTTP guard: a library preloaded into tritonserver that refuses requests which would end it."""
