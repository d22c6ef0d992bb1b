# A profile of Conan for gpumem: clang 19, C++20 without extensions, Ninja.
[settings]
os=Linux
arch={{ detect_api.detect_arch() }}
compiler=clang
compiler.version=19
compiler.cppstd=20
compiler.libcxx=libstdc++11
build_type=Release

[conf]
tools.build:compiler_executables={"c": "clang-19", "cpp": "clang++-19"}
tools.cmake.cmaketoolchain:generator=Ninja
