# Trains a small GPT from a folder of Parquet or JSONL files:
#
#   docker build -t tokenfeed .
#   docker run --rm --gpus all -v "$PWD/text:/text:ro" -v "$PWD/out:/out" tokenfeed /text --out /out --seconds 600
#
# Without --gpus, it trains on the processor. Any other command of tokenfeed: --entrypoint tokenfeed.
FROM python:3.12-slim
WORKDIR /tokenfeed
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir '.[text,remote,torch]' && useradd --create-home trainer && mkdir /out && chown trainer /out
COPY examples examples
USER trainer
WORKDIR /home/trainer
ENTRYPOINT ["python", "/tokenfeed/examples/demo.py"]
