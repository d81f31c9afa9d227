#!/bin/sh
# Install the peers into bench/peers/.venv, an environment without cclfp: about 1.8 GB, a few minutes.
#
#     bench/peers/install.sh
#     PYTHON=python3.12 bench/peers/install.sh
set -eu
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
  --constraint ../../constraints.txt --requirement requirements.txt
.venv/bin/python -W ignore -c '
import job
job.declare_operators()
import avalanche, importlib.metadata, torch, torchvision
print("avalanche", avalanche.__version__, "capymoa", importlib.metadata.version("capymoa"))
print("torch", torch.__version__, "torchvision", torchvision.__version__)'
