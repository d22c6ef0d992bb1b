# Finds the lines of the library that planted faults change. Arguments: lists of faults, whose format mutants.txt says,
# then the sources. Reports each fault whose line does not stand once. With -v name=FAULT it prints the facts of that
# fault: what it does, the file, the line's number, the line, the faulty line, and the further line of the list, if any.
# SPDX-License-Identifier: Apache-2.0

function report(list, fault, message) {
  print list ": " fault ": " message
  failed = 1
}

# Ends the fault whose lines have been read.
function end_fault(  named) {
  named = count > 2 && lines[3] ~ /^in /
  if (count == 4 + named || count == 5 + named) {
    names[++faults] = lines[1]
    lists[faults] = list
    does[faults] = lines[2]
    functions[faults] = named ? substr(lines[3], 4) : ""
    right[faults] = lines[3 + named]
    wrong[faults] = lines[4 + named]
    further[faults] = lines[5 + named]
    wanted[right[faults]]
  } else if (count) {
    report(list, lines[1], count " lines")
  }
  split("", lines)
  count = 0
}

# Returns whether the function `name` begins with the line `heading`.
function defines(heading, name,  at) {
  at = index(heading, name "(")
  return at && substr(" " heading, at, 1) !~ /[A-Za-z0-9_:~]/
}

function find(fault,  text, spot, found, last, all, i) {
  text = right[fault]
  for (i = 1; i <= times[text]; ++i) {
    spot = spots[text, i]
    all = all "\n  found at " files[spot] ":" numbers[spot]
    if (functions[fault] != "" && !defines(headings[spot], functions[fault])) continue
    last = spot
    ++found
  }
  if (found != 1) {
    if (found > 1) all = all "\n  name its function in the line before: in CLASS::FUNCTION"
    report(lists[fault], names[fault], found + 0 " times in " \
      (functions[fault] == "" ? "the sources" : functions[fault]) ": " text all)
  } else if (name != "") {
    print does[fault] "\n" files[last] "\n" numbers[last] "\n" text "\n" wrong[fault] "\n" further[fault]
  }
}

FNR == 1 {
  end_fault()
  is_list = FILENAME ~ /\.txt$/
  if (is_list) list = FILENAME
}
is_list && /^#/ && !count { next }
is_list && $0 == "" { end_fault() }
is_list && $0 != "" { lines[++count] = $0 }
is_list { next }

# A definition begins at the first column. The lines up to the next one belong to it.
/^[^ }\/#{]/ && !/:$/ { heading = $0 }
$0 in wanted {
  spots[$0, ++times[$0]] = ++all_spots
  files[all_spots] = FILENAME
  numbers[all_spots] = FNR
  headings[all_spots] = heading
}

END {
  for (i = 1; i <= faults; ++i) {
    if (name != "" && names[i] != name) continue
    find(i)
    ++asked
  }
  if (!asked) report(list, name, "no such fault")
  if (name == "" && !failed) print "the lines of " faults " faults stand once"
  exit failed
}
