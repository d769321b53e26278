# The API and the web page. No torch: archs are known by their cards, and workers run the models.
FROM python:3.12-slim AS python
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY models models
COPY server server
COPY worker worker
RUN pip install --no-cache-dir --constraint constraints.txt --editable .

FROM python AS schema
RUN python -m server.openapi > /openapi.json

FROM node:22-slim AS page
WORKDIR /app/ui
COPY ui/package.json ui/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY ui ./
COPY --from=schema /openapi.json openapi.json
RUN npm run build && node scripts/emoji.mjs ../server/demo

FROM python
COPY --from=page /app/server/static server/static
COPY --from=page /app/server/demo server/demo
RUN useradd --uid 1000 --create-home safelight && install -d -o safelight /data
USER safelight
VOLUME /data
EXPOSE 8765
CMD ["safelight", "serve"]
