#!/bin/sh
# Makes the Python environment of the server's client and browser tests: tools/test_venv.sh [FOLDER], default
# build/venv. Chromium comes from the system's packages (chromium) where there is one.
set -eu
folder="${1:-$(dirname "$0")/../build/venv}"
[ -x "$folder/bin/python" ] || python3 -m venv "$folder"
"$folder/bin/pip" install -q "openai==3.*" "anthropic==2.*" "playwright==1.*"
echo "$folder"
