# Compiles one source file of a module library with one fault and links a test with it. The scripts beside it source
# this file.
# SPDX-License-Identifier: Apache-2.0

# read_fault LIST FAULT: finds the fault's line in the sources, and reads into `facts`: what the fault does, the line's
# file, its number, the line, the faulty line, and the further line of the list, if any. Fails if there is no such line.
read_fault() {
  local found
  found=$(shopt -s globstar && cd "$source_folder" &&
    awk -v name="$2" -f test/mutants/find_faults.awk "test/mutants/$1" {src,bench}/**/*.cpp src/c/held_pool.hpp \
      modules/bridge/gpumem/device_heap_*.hpp) || { echo "$found"; return 1; }
  mapfile -t facts <<<"$found"
}

# make_test FOLDER LIBRARY PROGRAM: builds the program with the fault of `facts`. Sets `command` to the command that runs
# it. If the library is gpumem_simulator_driver or gpumem_c, builds that library with the fault; the program loads it.
# Call it in the build folder, with source_folder and ninja set. FOLDER must be relative and without blanks, since it
# becomes part of evaluated commands. What is compiled for an earlier program of the same fault is not compiled again.
make_test() {
  local here=$1 library=$2 linked=$3 driver
  driver=$("$ninja" -t targets all | sed -n 's|^\(.*/libgpumem_simulator_driver\.so\): .*|\1|p')
  command=("$here/test")
  if [[ $library == gpumem_simulator_driver ]]; then
    linked=$driver command=(env "GPUMEM_SIMULATOR_LIBRARY=$here/test" "./$3")
  elif [[ $library == gpumem_c ]]; then
    linked=$("$ninja" -t targets all | sed -n 's|^\(.*/libgpumem_c\.so[0-9.]*\): .*SHARED.*|\1|p')
    command=(env "LD_PRELOAD=$PWD/$here/test $PWD/$driver" "./$3")
  fi
  if [[ ${facts[1]} == modules/bridge/* ]]; then
    make_header_mutant "$here" "$linked"
    return
  fi
  if [[ ${compiled-} != "$here ${facts[*]}" ]]; then
    compile_mutant "$here" "$library" || return
    compiled="$here ${facts[*]}"
  fi
  link_mutant "$here" "$linked"
}

# compile_mutant FOLDER LIBRARY: compiles the object with the fault, and sets `object` to the one that it replaces.
compile_mutant() {
  local here=$1 library=$2
  local file=${facts[1]} original=$source_folder/${facts[1]}
  local mutant=$here/${file##*/} unit compile path
  mkdir -p "$here"

  # The build compiles the file alone, or as a part of a generated unit, in which #line directives count its lines.
  unit=$(grep -lsE "^#line [0-9]+ \"$file\"" modules/"$library"/*.cpp modules/base/scheduled/"$library"/*.cpp || true)
  unit=${unit:-$original}
  file="\"$file\"" number=${facts[2]} right=${facts[3]} wrong=${facts[4]} alone=$([[ $unit == "$original" ]] && echo 1 || echo 0) awk '
    BEGIN { inside = ENVIRON["alone"] }
    !ENVIRON["alone"] && $1 == "#line" {
      if (NF == 3) inside = $3 == ENVIRON["file"]
      number = $2 - 1
      print
      next
    }
    ++number == ENVIRON["number"] && inside && $0 == ENVIRON["right"] { $0 = ENVIRON["wrong"]; ++changed }
    { print }
    END { exit !changed }' "$unit" >"$mutant" || { echo "$unit is older than ${facts[1]}: build $library first"; return 1; }
  if [[ $file == *.hpp ]]; then # stack.cpp makes these pools; its copy finds the header beside it
    file=${file%/*}/stack.cpp original=$source_folder/${facts[1]%/*}/stack.cpp
    unit=$original mutant=$here/stack.cpp
    cp "$unit" "$mutant"
  fi

  # Takes the compile command of the build, with other output files, and less optimization, which takes less time.
  local inside=$file
  [[ $unit == "$original" ]] || inside=$library/${unit##*/}
  [[ $library == gpumem_simulator_driver || $library == gpumem_c || $file == bench/* ]] && inside=${file##*/}
  object=$("$ninja" -t targets all | sed -n "s|^\(.*/$library\.dir/.*$inside\.o\): .*|\1|p")
  compile=$("$ninja" -t commands -s "$object" | tail -1)
  compile=${compile//-o $object/-o $here/mutant.o}
  compile=${compile//-MF $object.d/-MF $here/mutant.d}
  [[ $unit == /* ]] || unit=$PWD/$unit
  for path in "$unit" "'$unit'" "\"$unit\""; do # as the build quotes it
    compile=${compile//-c "$path"/-c $mutant}
  done
  [[ $compile == *"-c $mutant"* ]] || { echo "the build does not compile $unit"; return 1; }
  compile=${compile// -Werror/} # what a fault leaves unused
  compile=${compile// -O3 / -O1 }
  printf -v path %q "${original%/*}"
  compile+=" -iquote $path" # headers beside the original
  eval "$compile"
}

# link_mutant FOLDER PROGRAM: links the program with that object as FOLDER/test.
link_mutant() {
  local here=$1 program=$2 link
  # An object that is named before the library replaces the library's own. The simulated driver is linked of objects.
  link=$("$ninja" -t commands -s "$program" | tail -1)
  link=${link%%&& cd *}
  link=${link/-o $program/-o $here/test}
  if [[ $link == *" $object "* ]]; then
    link=${link/ $object / $here/mutant.o }
  else
    link=${link/-o $here\/test/$here/mutant.o -o $here/test}
  fi
  eval "$link"
}

# make_header_mutant FOLDER PROGRAM: compiles all sources of the program with a header that has the fault.
make_header_mutant() {
  local here=$1 program=$2 link compile each header=$1/gpumem/${facts[1]##*/}
  mkdir -p "$here/gpumem"
  number=${facts[2]} wrong=${facts[4]} awk 'NR == ENVIRON["number"] { $0 = ENVIRON["wrong"] } { print }' \
    "$source_folder/${facts[1]}" >"$header"
  link=$("$ninja" -t commands -s "$program" | tail -1)
  link=${link%%&& cd *}
  link=${link/-o $program/-o $here/test}
  for each in $(grep -oE '[^ ]+\.cpp\.o' <<<"$link"); do
    compile=$("$ninja" -t commands -s "$each" | tail -1)
    compile=${compile//-o $each/-o $here/${each##*/}}
    compile=${compile//-MF $each.d/-MF $here/mutant.d}
    compile=${compile/ -I/ -I$here -I}
    compile=${compile// -Werror/}
    compile=${compile// -O2/ -O1}
    eval "$compile" || return
    link=${link/ $each/ $here/${each##*/}}
  done
  eval "$link"
}
