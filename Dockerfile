# syntax=docker/dockerfile:1
# Two images of the HTTP service, each with one virtual environment pinned by constraints.txt:
#
#   docker build --target cpu -t precedent:cpu .
#   docker build --target gpu -t precedent:gpu .
#   docker run --rm -p 8080:8080 -v "$PWD/outputs/demo/train:/artifacts:ro" \
#     -v precedent-data:/data precedent:cpu
#
# /artifacts holds the trained retriever as `artifact` (read only), /data the bank and its index. The
# service listens on every interface of the container: who may reach the port is for `docker run -p`
# to say. It runs as user 10001, who must be able to read /artifacts and to write /data: a folder of
# yours mounted there must belong to 10001, a named volume does. What is compiled at first use is kept
# in /data/cache, and temporary files are in /tmp, so with `--read-only` mount both: add
# `--tmpfs /tmp`, and `--tmpfs /data/cache:mode=1777,exec` where /data may not hold it.

FROM python:3.11-slim AS cpu-build
RUN python -m venv /opt/venv
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE train.py serve.py evaluate.py ./
COPY conf conf
COPY harness harness
COPY memory memory
COPY retriever retriever
COPY service service
RUN --mount=type=cache,target=/var/cache/pip \
    PIP_CACHE_DIR=/var/cache/pip /opt/venv/bin/pip install -c constraints.txt ".[cpu,serve,postgres]"

# The CUDA libraries of torch, ONNX Runtime and FAISS come with their wheels; the base brings what the
# driver expects, Python 3.12, and the C compiler and Python's headers with which Triton builds the
# launchers of its kernels at their first use.
FROM nvidia/cuda:13.0.1-runtime-ubuntu24.04 AS gpu-base
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM gpu-base AS gpu-build
RUN python3 -m venv /opt/venv
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE train.py serve.py evaluate.py ./
COPY conf conf
COPY harness harness
COPY memory memory
COPY retriever retriever
COPY service service
RUN --mount=type=cache,target=/var/cache/pip \
    PIP_CACHE_DIR=/var/cache/pip /opt/venv/bin/pip install -c constraints.txt ".[gpu,serve,postgres]"

FROM python:3.11-slim AS cpu
RUN useradd --system --create-home --uid 10001 precedent \
    && install -d -o precedent -g precedent /data /artifacts
COPY --from=cpu-build /opt/venv /opt/venv
WORKDIR /app
COPY serve.py ./
COPY conf conf
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 ORT_DISABLE_TELEMETRY=1 \
    NUMBA_CACHE_DIR=/data/cache/numba
USER 10001
VOLUME ["/data", "/artifacts"]
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "serve.py", "service.host=0.0.0.0", "service.port=8080", "bank.url=/data/bank.sqlite", "index.folder=/data/index", "artifact=/artifacts/artifact"]

FROM gpu-base AS gpu
RUN useradd --system --create-home --uid 10001 precedent \
    && install -d -o precedent -g precedent /data /artifacts
COPY --from=gpu-build /opt/venv /opt/venv
WORKDIR /app
COPY serve.py ./
COPY conf conf
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 ORT_DISABLE_TELEMETRY=1 \
    NUMBA_CACHE_DIR=/data/cache/numba TRITON_CACHE_DIR=/data/cache/triton
USER 10001
VOLUME ["/data", "/artifacts"]
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "serve.py", "service.host=0.0.0.0", "service.port=8080", "bank.url=/data/bank.sqlite", "index.folder=/data/index", "artifact=/artifacts/artifact"]
