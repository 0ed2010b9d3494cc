#!/bin/sh
# Tests against files of published models. Skipped (77) unless ATOM_SHARED names a folder with tokenizers/, templates/, configs/
# and models/, each holding folders, files or archives of folders; then no test may be skipped for want of it.
#   tests/published_files.sh BUILD
set -u
[ -n "${ATOM_SHARED:-}" ] || { echo "skipped: ATOM_SHARED is not set"; exit 77; }
files=$(mktemp -d)
trap 'rm -rf "$files"' EXIT
for entry in "$ATOM_SHARED"/*/*; do
  folder=$files/$(basename "$(dirname "$entry")")
  mkdir -p "$folder"
  case $entry in
    *.tar.xz | *.tgz)
      name=$(basename "$entry")
      name=${name%%.t*}
      mkdir "$folder/$name"
      tar -xf "$entry" -C "$folder/$name" || exit 1
      if [ -d "$folder/$name/$name" ]; then  # the folder itself was packed
        mv "$folder/$name" "$folder/.$name" && mv "$folder/.$name/$name" "$folder/$name"
      fi
      ;;
    *) ln -s "$entry" "$folder/" ;;
  esac
done
export ATOM_SHARED="$files" ATOM_TOKENIZERS="$files/tokenizers"
failed=0
for test in text checkpoint nn models runtime engine; do
  filter='*'
  [ $test = engine ] && filter='Speculation.FollowsTheTrace*'
  told=$("$1/${test}_test" --gtest_brief=1 --gtest_filter="$filter" 2>&1) || failed=1
  echo "$told" | tail -12
  if echo "$told" | grep -qE 'ATOM_(SHARED|TOKENIZERS)'; then
    echo "${test}_test: skipped a test although ATOM_SHARED is set"
    failed=1
  fi
done
exit $failed
