# One worker, with torch. The CUDA libraries come with torch; the driver comes from the host (NVIDIA Container Toolkit).
FROM python:3.12-slim
WORKDIR /app
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH"
COPY pyproject.toml constraints.txt requirements-demo.txt README.md LICENSE ./
COPY models models
COPY server server
COPY worker worker
RUN pip install --no-cache-dir --constraint constraints.txt --editable '.[worker]' \
    && pip install --no-cache-dir --no-deps --require-hashes --requirement requirements-demo.txt
RUN useradd --uid 1000 --create-home safelight && install -d -o safelight /data
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER safelight
VOLUME /data
CMD ["safelight", "worker"]
