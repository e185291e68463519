# Makes the comments of a header such that Doxygen takes them and leaves them as they are, line by
# line: `/* text */` at the beginning of a line becomes `/** @verbatim text @endverbatim */`, with
# @file for the one that opens the file. Headings (`/* ---- `) and comments inside of declarations
# stay.
/^\/\*/ && !/^\/\* ----/ { sub(/^\/\*/, "/** @verbatim"); open = 1 }
open && /\*\// { sub(/\*\//, (n++ ? "@endverbatim */" : "@endverbatim @file */")); open = 0 }
{ print }
