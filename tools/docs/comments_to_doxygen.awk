# Converts the comments of a header for Doxygen, which must copy them line by line: `/* text */` at the
# beginning of a line becomes `/** @verbatim text @endverbatim */`, with @file for the first one in the
# file. Headings (`/* ---- `) and comments inside declarations stay.
/^\/\*/ && !/^\/\* ----/ { sub(/^\/\*/, "/** @verbatim"); open = 1 }
open && /\*\// { sub(/\*\//, (n++ ? "@endverbatim */" : "@endverbatim @file */")); open = 0 }
{ print }
