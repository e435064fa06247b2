# Limba with its packages, for one kind of accelerator:
#
#   docker build --build-arg ACCELERATOR=cuda -t limba:cuda .        # cpu, tpu, cuda, cuda12 or rocm (with PYTHON=3.11)
#   docker run --gpus all -v "$PWD/runs:/runs" -v "$PWD/data:/data" limba:cuda \
#     gin/demo.gin CORPUS='/data/*.jsonl' VOCABULARY=byte VOCAB_SIZE=384 MODEL_DIR=/runs/demo
#
# The wheels bring CUDA's libraries, so a small base image is enough; the host has the driver. docs/install.md
ARG PYTHON=3.12
FROM python:${PYTHON}-slim-bookworm

ARG ACCELERATOR=cpu
RUN useradd --uid 1000 --create-home limba && install -d -o limba /limba /limba/gin /limba/tasks /runs
USER 1000
WORKDIR /limba

# First what is installed, so that a change of the code does not install again.
COPY --chown=1000 requirements.txt pyproject.toml setup.py README.md LICENSE ./
COPY --chown=1000 requirements requirements
COPY --chown=1000 launch/setup.sh launch/setup.sh
COPY --chown=1000 limba/__init__.py limba/__init__.py
ENV UV_COMPILE_BYTECODE=1 UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1
RUN bash launch/setup.sh "$ACCELERATOR"

COPY --chown=1000 . .
# COPY may change what setup.sh has looked at; where nothing did, this takes no time.
RUN bash launch/setup.sh "$ACCELERATOR"
ENV PATH=/limba/.venv/bin:$PATH ACCELERATOR=$ACCELERATOR
ENTRYPOINT ["bash", "launch/pretrain.sh"]
CMD ["--help"]
