# Compiles one source file of a module library with one fault and links a test with it. The scripts beside it source
# this file.
# SPDX-License-Identifier: Apache-2.0

# Reads the lines of one fault of a list, after its name, into `facts`.
read_fault() {
  local list=$1 fault=$2 least=$3
  mapfile -t facts < <(awk -v name="$fault" '$0 == name { on = 1 } on && $0 == "" { exit } on' "$list")
  ((${#facts[@]} >= least)) || { echo "no fault $fault with $least lines in $list"; exit 1; }
}

# make_mutant FOLDER LIBRARY PROGRAM: builds the program with the fault of `facts` as FOLDER/test. If the library is
# gpumem_simulator_driver, PROGRAM is that library. Call it in the build folder, with source_folder and ninja set. FOLDER
# must be relative and without blanks, since it becomes part of evaluated commands.
make_mutant() {
  local here=$1 library=$2 program=$3
  local original=$source_folder/src/${facts[2]} right=${facts[3]} wrong=${facts[4]}
  local mutant=$here/${facts[2]##*/} unit object compile link path
  mkdir -p "$here"
  [[ $(grep -cxF -- "$right" "$original") == 1 ]] || { echo "not once in $original: $right"; exit 1; }

  # The build compiles the file alone, or as a part of a generated unit, in which it begins at its #line directive.
  unit=$(grep -lsE "^#line [0-9]+ \"src/${facts[2]}\"" modules/"$library"/*.cpp modules/base/scheduled/"$library"/*.cpp || true)
  unit=${unit:-$original}
  right=$right wrong=$wrong file="\"src/${facts[2]}\"" alone=$([[ $unit == "$original" ]] && echo 1 || echo 0) awk '
    BEGIN { inside = ENVIRON["alone"] }
    $1 == "#line" && NF == 3 { inside = $3 == ENVIRON["file"] }
    inside && $0 == ENVIRON["right"] { $0 = ENVIRON["wrong"] }
    { print }' "$unit" > "$mutant"

  # Takes the compile command of the build, with other output files, and less optimization, which takes less time.
  local inside=src/${facts[2]}
  [[ $unit == "$original" ]] || inside=$library/${unit##*/}
  [[ $library == gpumem_simulator_driver ]] && inside=${facts[2]##*/}
  object=$("$ninja" -t targets all | sed -n "s|^\(.*/$library\.dir/.*$inside\.o\): .*|\1|p")
  compile=$("$ninja" -t commands -s "$object" | tail -1)
  compile=${compile//-o $object/-o $here/mutant.o}
  compile=${compile//-MF $object.d/-MF $here/mutant.d}
  [[ $unit == /* ]] || unit=$PWD/$unit
  for path in "$unit" "'$unit'" "\"$unit\""; do # as the build quotes it
    compile=${compile//-c "$path"/-c $mutant}
  done
  [[ $compile == *"-c $mutant"* ]] || { echo "the build does not compile $unit"; exit 1; }
  compile=${compile// -Werror/} # what a fault leaves unused
  compile=${compile// -O3 / -O1 }
  printf -v path %q "${original%/*}"
  compile+=" -iquote $path" # headers beside the original
  eval "$compile"

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
