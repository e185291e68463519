#!/usr/bin/env python3
"""seam.py [--now] SEAM FACTS SOURCES: holds rpc and rref to the seam that SEAM describes.

Rows of SEAM are KIND<tab>NAME<tab>COUNT, or KIND<tab>NAME for symbols and hooks:
  symbol  one of rpc's symbols that rref uses
  hook    a function of struct tether__ext_ops (rpc/refs.h), by which rpc calls rref
  refs    a file of rpc, and its lines that name forks, pins, children or owners of objects
A row that is missing, or a count that has grown, is a failure. So is a row or a count that is no longer
needed: the numbers only ever go down. --now prints the rows as they would have to be.

Two more kinds have no rows, since neither is allowed anywhere:
  fields  a file of rref, and its lines that touch fields of rpc's structs (peer, session, stream, agent)
  locks   a file of rref, and its lines that lock or unlock a peer
"""
import collections
import re
import sys

FIELDS = re.compile(r'\b(?:peer|session|stream|agent)->[a-z]|\bowner->(?!peer\b|number\b)[a-z]')
LOCKS = re.compile(r'\btether__peer_(?:un)?lock\w*\(|\b(?:peer|agent|owner)->mu\b')
REFS = re.compile(r'(?<![a-z])(?<!slice_)(?:forks?|pins?|pinned|children|owner_incarnation|ownerdied|'
                  r'owner of (?:the|an) object)(?![a-z])', re.IGNORECASE)
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*', re.DOTALL)
HOOKS = 'rpc/refs.h'  # may name everything
# Folders whose words have other meanings: a process forks, a slice pins memory.
OTHER_WORDS = ('rpc/transport/', 'rpc/lane/', 'rpc/future/')
NEVER = {'fields', 'locks'}  # no row allows these
# Code of the wire format: it has a line for each field of a header.
CODEC = 'rpc/wire/call_header.c'

ADVICE = {
    'symbol': 'rref uses a symbol of rpc that is new to it: do without, or use one that it uses already',
    'hook': 'a new hook: take the message or the event through one that is there',
    'fields': 'rref touches fields of a struct of rpc: use rpc/refs_api.h, or pass the value to the hook',
    'locks': "rref takes a lock of rpc's: do the work in a hook that runs under it",
    'refs': "rpc names state of the reference layer: keep it in rref, behind the hooks of rpc/refs.h",
}


def read(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def code_of(text):
    """The text with its comments blanked out."""
    return COMMENT.sub(lambda match: re.sub(r'[^\n]', ' ', match.group()), text)


def count(pattern, text):
    return sum(1 for line in text.split('\n') if pattern.search(line))


def symbols(facts):
    definer, used = {}, set()
    for kind, unit, name in (line.split(' ') for line in facts.splitlines()):
        if kind == 'defined':
            definer[name] = unit
        elif kind == 'undefined' and unit == '//rref':
            used.add(name)
    ours = {name for name in used if name.startswith('tether__')}
    return {name for name in ours if definer.get(name, '').startswith('//rpc')}


def hooks(text):
    body = re.search(r'struct tether__ext_ops \{(.*?)\n\};', code_of(text), re.DOTALL).group(1)
    return set(re.findall(r'^    [^\n]*?\(\*(\w+)\)\(', body, re.MULTILINE))


def now(facts, sources):
    """All rows as they are: (kind, name) -> count, None for symbols and hooks."""
    rows = {('symbol', name): None for name in symbols(read(facts))}
    for path in sources:
        text = read(path)
        if path == HOOKS:
            rows.update({('hook', name): None for name in hooks(text)})
        found = collections.Counter()
        if path.startswith('rref/'):
            found['fields'] = count(FIELDS, code_of(text))
            found['locks'] = count(LOCKS, code_of(text))
        elif path not in (HOOKS, CODEC) and not path.startswith(OTHER_WORDS):
            found['refs'] = count(REFS, text)
        rows.update({(kind, path): n for kind, n in found.items() if n})
    return rows


def allowed(path):
    rows = {}
    for line in read(path).splitlines():
        if line and not line.startswith('#'):
            kind, name, *n = line.split('\t')
            if kind not in NEVER:
                rows[kind, name] = int(n[0]) if n else None
    return rows


def text_of(key, n):
    return '\t'.join(key) + ('' if n is None else '\t%d' % n)


def main(args):
    just_print = args[0] == '--now'
    seam, facts, *sources = args[1:] if just_print else args
    is_rows = now(facts, sources)
    if just_print:
        print('\n'.join(text_of(key, n) for key, n in sorted(is_rows.items())))
        return False
    may_rows = allowed(seam)
    wrong = not {'symbol', 'hook', 'refs'} <= {kind for kind, _ in is_rows}
    if wrong:
        print('no symbol or no hook was found: are these the facts and sources of rpc and rref?')
    for key in sorted(is_rows.keys() | may_rows.keys()):
        kind, name = key
        is_n, may_n = is_rows.get(key, 0), may_rows.get(key, 0)
        if key in is_rows and (key not in may_rows or (is_n or 0) > (may_n or 0)):
            print('%s %s: %s, allowed %s. %s (see %s)' % (
                kind, name, 'there' if is_n is None else '%d lines' % is_n,
                'no' if key not in may_rows else may_n, ADVICE[kind], seam))
            wrong = True
        elif is_n != may_n:
            print('%s %s: fewer than %s allows. Write: %s' % (
                kind, name, seam, text_of(key, is_n) if key in is_rows else 'nothing, remove the row'))
            wrong = True
    return wrong


sys.exit(main(sys.argv[1:]))
