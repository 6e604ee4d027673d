#!/usr/bin/env bash
# bootstrap.sh [ci]: installs what is missing to build ordo on Debian 12 or Ubuntu 24.04, and with `ci` the checkers too.
# Needs root or sudo only when a Debian package is missing. NVRTC comes from an installed CUDA toolkit (12.8 or later), else from
# NVIDIA's wheels, unpacked into build/cuda. ORDO_FORCE_WHEELS=1 ignores installed toolkits.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The versions the project is tested with.
wheels=(nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96)

packages=(g++ cmake ninja-build lld-19 llvm-19-dev libzstd-dev zlib1g-dev libfmt-dev nlohmann-json3-dev libcli11-dev libsqlite3-dev
  libtomlplusplus-dev doctest-dev)
if [ "${1:-}" = ci ]; then
  packages+=(ccache pkg-config clang-19 libclang-rt-19-dev clang-format-19 clang-tidy-19)
fi

fail() {
  echo "bootstrap: $*" >&2
  exit 3
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  elif command -v sudo >/dev/null; then
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  else
    fail "needs root or sudo to run: $*"
  fi
}

# Installs those of the named packages that are not installed.
apt_install() {
  local installed missing=() package
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "bootstrap: no apt here; this system's counterparts of these are needed: $*" >&2
    return
  fi
  # ${...} is dpkg's own syntax. A package that dpkg has never heard of makes it fail, which is no failure here.
  # shellcheck disable=SC2016
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^installed //p' || true)
  for package in "$@"; do
    grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0

  echo "bootstrap: installing ${missing[*]}" >&2
  as_root apt-get update -qq >&2 || echo "bootstrap: apt-get update failed; going on with the lists there are" >&2
  # Minimal Ubuntu images may come without universe, which holds LLVM 19.
  if grep -qs '^ID=ubuntu' /etc/os-release && ! apt-cache show "${missing[@]}" >/dev/null 2>&1; then
    as_root apt-get install -y -qq --no-install-recommends software-properties-common >&2
    as_root add-apt-repository -y universe >&2
    as_root apt-get update -qq >&2
  fi
  as_root apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 ||
    fail "apt-get could not install: ${missing[*]} (Debian 12 and Ubuntu 24.04, both up to date, have all of them)"
}

has_nvrtc() { cmake -P cmake/find_cuda.cmake >/dev/null 2>&1; }

fetch_nvrtc() {
  python3 -m pip --version >/dev/null 2>&1 || apt_install python3 python3-pip
  echo "bootstrap: fetching ${wheels[*]} into build/cuda" >&2
  local folder=build/cuda.partial wheel
  rm -rf "$folder" build/cuda
  mkdir -p "$folder"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$folder" "${wheels[@]}" >&2 ||
    fail "could not download ${wheels[*]}; install a CUDA toolkit of 12.8 or later instead, and set CUDA_HOME to it"
  for wheel in "$folder"/*.whl; do
    python3 -m zipfile -e "$wheel" "$folder"
    rm "$wheel"
  done
  mv "$folder" build/cuda
  has_nvrtc || fail "the wheels ${wheels[*]} hold no NVRTC where it was expected, build/cuda/nvidia/cu13"
}

apt_install "${packages[@]}"
has_nvrtc || fetch_nvrtc
