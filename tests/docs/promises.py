"""Demands a decision for each sentence of a document: does it promise something?

usage: promises.py PROMISES NO_PROMISES DOCUMENT...

A sentence, or a row of a table, that promises something is quoted by a row of PROMISES: document, quote,
test target, test case. Any other stands in NO_PROMISES: document and sentence. So a new or changed
sentence fails until somebody has decided, and a promise fails when its test is gone.

Rows of a table with the column `test` name theirs themselves: threats_test.sh checks those.

A test case is defined by the source of its target, or by a shared source of that folder, and not by
another test. Shell tests and fuzz tests have no cases: their rows quote words of the source.

With --undecided in place of a first argument: prints the sentences without a decision, as rows of NO_PROMISES.
"""
import glob
import os
import re
import sys

# Where a case begins: a function, or a macro that makes one.
DEFINITION = r'(\bvoid\s+{0}\s*\(|^[A-Z][A-Z_0-9]*\({0}\b)'
# Behind these a full stop ends no sentence.
ABBREVIATION = re.compile(r'(\be\.g|\bi\.e|\bvs)\.$')
LIST_ITEM = re.compile(r'^(- |\d+\. )')


def squeeze(text):
    return re.sub(r'\s+', ' ', text).strip()


def sentences(paragraph):
    """Splits at full stops, question and exclamation marks with a blank and a capital behind them."""
    begin = 0
    for end in re.finditer(r'[.?!][)*"]*(?= +[(*"`\[]*[A-Z`])', paragraph):
        if not ABBREVIATION.search(paragraph[:end.end()]):
            yield paragraph[begin:end.end()].strip()
            begin = end.end()
    if paragraph[begin:].strip():
        yield paragraph[begin:].strip()


def names_its_test(head, row):
    cells = [cell.strip() for cell in head.split('|')]
    return 'test' in cells and '`' in row.split('|')[cells.index('test')]


def blocks(lines):
    """The paragraphs, list items and table rows, without headings, code and comments."""
    block, fenced, table_line, head = [], False, 0, ''
    blank_before = True
    for line in lines:
        text = line.strip()
        is_row = text.startswith('|')
        table_line = table_line + 1 if is_row and not fenced else 0
        if table_line == 1:
            head = text
        if text.startswith('```'):
            fenced = not fenced
        is_code = fenced or text.startswith('```') or (line.startswith('    ') and blank_before and not block)
        ends = is_code or not text or is_row or text.startswith(('#', '<!--')) or LIST_ITEM.match(text)
        if ends and block:
            yield squeeze(' '.join(block)), False
            block = []
        if is_row and table_line > 2 and not fenced and not names_its_test(head, text):
            yield squeeze(text), True
        elif text and not is_code and not is_row and not text.startswith(('#', '<!--')):
            block.append(LIST_ITEM.sub('', text) if not block else text)
        blank_before = not text or is_code
    if block:
        yield squeeze(' '.join(block)), False


def units(path):
    """Each sentence and table row with its place in the squeezed text of the document."""
    with open(path, encoding='utf-8') as document:
        lines = document.read().split('\n')
    whole, at = squeeze('\n'.join(lines)), 0
    for block, is_row in blocks(lines):
        for unit in [block] if is_row else sentences(block):
            at = whole.index(unit, at)
            yield unit, at, at + len(unit)
            at += len(unit)


def places(whole, quote):
    at = whole.find(quote)
    while at >= 0:
        yield at, at + len(quote)
        at = whole.find(quote, at + 1)


def table(path, columns, wrong):
    rows = []
    with open(path, encoding='utf-8') as file:
        for line in file.read().split('\n')[1:]:
            row = line.split('\t')
            if line and len(row) != columns:
                wrong(f'not {columns} columns: {line}')
            elif line:
                rows.append(row)
    if len({tuple(row) for row in rows}) != len(rows):
        wrong(f'{path} has a line twice')
    return rows


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def check_case(target, case, wrong):
    folder, name = target.lstrip('/').split(':')
    script, source = f'{folder}/{name}.sh', f'{folder}/{name}.c'
    without_cases = script if os.path.exists(script) else source
    if not os.path.exists(without_cases):
        wrong(f'there is no test {target}')
        return
    if without_cases == script or name.endswith('_fuzz_test'):
        if case not in read(without_cases):
            wrong(f"{target} does not say '{case}'")
        return
    shared = [path for path in glob.glob(f'{folder}/*.c') if not path.endswith('_test.c')]
    text = '\n'.join(read(path) for path in [source] + sorted(shared))
    definition = re.compile(DEFINITION.format(re.escape(case)), re.M)
    if not definition.search(text) or len(re.findall(rf'\b{re.escape(case)}\b', text)) < 2:
        wrong(f'{target} does not both define and register {case}')


def main(promises, no_promises, documents, shows):
    failures = []
    wrong = failures.append
    decided = {path: [] for path in documents}
    rows = table(promises, 4, wrong)
    listed = {tuple(row) for row in table(no_promises, 2, wrong)}
    for document, quote, target, case in rows:
        found = list(places(squeeze(read(document)), squeeze(quote)))
        if not found:
            wrong(f"{document} does not say '{quote}'")
        decided.setdefault(document, []).extend(found)
        check_case(target, case, wrong)
    n, used, new = 0, set(), []
    for document in documents:
        for unit, begin, end in units(document):
            n += 1
            has_row = any(a < end and begin < b for a, b in decided[document])
            is_listed = (document, unit) in listed
            used.add((document, unit))
            if has_row and is_listed:
                wrong(f"{document}: has a test and is in {no_promises}: '{unit}'")
            if not has_row and not is_listed:
                new.append((document, unit))
                wrong(f"{document}: no decision: give it a row with a test, or a line in {no_promises}: '{unit}'")
    for document, unit in sorted(listed - used):
        wrong(f"{no_promises}: {document} does not say '{unit}'")
    if shows:
        print('\n'.join('\t'.join(row) for row in new))
        return
    print(f'{n} sentences and rows, {len(rows)} promises')
    for failure in failures:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == '__main__':
    shows_only = sys.argv[1] == '--undecided'
    arguments = sys.argv[2:] if shows_only else sys.argv[1:]
    main(arguments[0], arguments[1], arguments[2:], shows_only)
