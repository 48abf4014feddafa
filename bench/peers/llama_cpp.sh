#!/usr/bin/env bash
# Builds llama.cpp's benchmark programs from the PyPI sdist of llama-cpp-python and prints the folder that holds them.
# Takes about five minutes on two cores the first time; the result is kept in the cache folder.
set -euo pipefail
version=0.3.36
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="${XDG_CACHE_HOME:-$HOME/.cache}/flotilla/peers/llama_cpp-$version"
if [ ! -x "$folder/bin/llama-batched-bench" ]; then
  mkdir -p "$folder"
  exec 3>&1 1>&2
  pip=("${FLOTILLA_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/flotilla/venv}/bin/python" -m pip)
  "${pip[@]}" download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-python -d "$folder" "llama-cpp-python==$version"
  tar -xzf "$folder"/llama_cpp_python-*.tar.gz -C "$folder"
  cp "$here/gcc12_tiles.h" "$folder"
  cmake -S "$folder"/llama_cpp_python-$version/vendor/llama.cpp -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS=-include $folder/gcc12_tiles.h" \
    -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_OPENSSL=OFF >"$folder/configure.log"
  cmake --build "$folder/build" --target llama-bench llama-batched-bench llama-quantize >"$folder/build.log"
  mkdir -p "$folder/bin"
  cp "$folder"/build/bin/llama-{bench,batched-bench,quantize} "$folder/bin/"
  exec 1>&3 3>&-
fi
rollout="$here/llama_rollout.cc"
if [ "$rollout" -nt "$folder/bin/llama_rollout" ]; then
  source="$folder/llama_cpp_python-$version/vendor/llama.cpp" libraries="$folder/build"
  # -ffast-math: its own sampling is to be as fast as compilers make it.
  ${CXX:-g++} -std=c++20 -O3 -march=native -ffast-math "$rollout" -I"$source/include" -I"$source/ggml/include" \
    "$libraries"/src/libllama.a "$libraries"/ggml/src/libggml{,-cpu,-base}.a -fopenmp -ldl -o "$folder/bin/llama_rollout"
fi
echo "$folder/bin"
