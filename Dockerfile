# The serving image. TensorRT-LLM and Triton come with the base image and are tied to each other:
# 26.04 to 26.07 hold TensorRT-LLM 1.2.1, the last release with TensorRT engines.
#
#   docker build -t recap-triton .
#   docker run --gpus all --shm-size=1g -p 8000-8002:8000-8002 recap-triton
#
# Another checkpoint: -v /models/qwen:/checkpoint -e RECAP_MODEL__CHECKPOINT=/checkpoint
ARG BASE_IMAGE=nvcr.io/nvidia/tritonserver:26.06-trtllm-python-py3
FROM ${BASE_IMAGE}

WORKDIR /opt/recap-triton
COPY pyproject.toml README.md LICENSE ./
COPY python_backend python_backend
# torch, transformers and numpy are those of the base image: the ranges in pyproject admit them.
RUN pip install --no-cache-dir ".[client]"

COPY engine_build engine_build
COPY model_repository model_repository
COPY scripts scripts

EXPOSE 8000 8001 8002
STOPSIGNAL SIGTERM
# Liveness is a real token: Triton's own health stays green after a model's process has died.
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python3", "scripts/healthcheck.py"]
CMD ["tritonserver", "--model-repository=/opt/recap-triton/model_repository", \
     "--disable-auto-complete-config"]
