"""The HTTP guard: a library preloaded into tritonserver that refuses HTTP requests which would end it."""
