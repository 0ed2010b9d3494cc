#!/usr/bin/env python3
"""Makes tests/data/jinja/*.json: small templates and what Jinja2 makes of them, set up as Hugging Face transformers
does; and from the same templates the seeds of the fuzzer, tests/data/fuzz/jinja/. Needs jinja2 >= 3.1.
usage: make_jinja_cases.py [--check]
Each file is a list of {"template", and "expected" or "error": the type of the exception}; they all see the variables
of variables.json."""
import datetime
import json
import pathlib
import sys

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 3, 7, 9, 5, 3)
DATA = pathlib.Path(__file__).parent / "data"
SEED_TEMPLATES = 20  # joined in one seed

VARIABLES = {
    "s": "Hello, World", "u": "naïve 日本 🙂 ß", "empty": "", "n": 7, "neg": -3, "f": 1.0, "t": True, "no": None,
    "l": [3, 1, 2], "words": ["b", "A", "c", "a"], "nested": [[1, 2], [3, [4, None]], {"k": "v"}],
    "d": {"b": 1, "a": [True, None, 1.0, 1e20, "é<&'\""], "items": "shadowed"}, "big": 12345678901234567890,
    "floats": [0.1, 1e-7, 1e16, 123456789.125, -0.0, 2.5, 1e22, 5e-324],
    "people": [{"name": "Ann", "age": 31, "city": "Oslo"}, {"name": "bob", "age": 25, "city": "Rome"},
               {"name": "Cid", "age": 31, "city": "oslo"}, {"name": "Dot", "age": None}],
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "<think>\nabc\n</think>\n\nHi"},
                 {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}],
    "ws": "  padded \n", "lines": "one\ntwo\r\nthree\n\nfour",
}

# One template a line; each group is a file. E(...) stands for {{ ... }}.
E = lambda *expressions: ["{{ %s }}" % e for e in expressions]

GROUPS = {}
GROUPS["expressions"] = E(
    "1", "-1", "- 1", "+1", "--1", "1.0", "1e3", "1E-7", "0x1F", "0b101", "0o17", "1_000", "1_0.5", "true", "True", "none", "None",
    "7/2", "6/2", "-7//2", "7//-2", "-7%3", "7%-3", "7.5//2", "-7.5//2", "7.5%2", "-7.5%2", "2**10", "2**-1", "-2**2", "2**3**2", "2.0**0.5",
    "0.1+0.2", "1+1.0", "true+1", "10**20", "big", "big+1", "big*big", "-big", "1/3", "1e16", "123456789012345678.0",
    "'a'+'b'", "'a' 'b'", "'ab'*3", "3*'ab'", "'ab'*0", "'ab'*-1", "[1]*2", "[1]+[2]", "(1,)+(2,)", "'a'~1~none~true~1.0~[1]~undefined_name",
    "1~2+3", "1+2~3", "'%02d' % 3", "1 if true else 2", "1 if false else 2", "1 if false", "(1 if false) is defined", "1 if true else 2 if true else 3",
    "1<2<3", "1<3<2", "3>2>1", "1==1.0", "1==true", "'a'=='a'!='b'", "1!=2", "1<=1", "2>=3", "'a'<'b'", "[1,2]<[1,3]", "(1,2)<(1,)", "[1]==(1,)",
    "1 in [1,2]", "3 not in [1,2]", "'ell' in s", "'x' not in s", "'b' in d", "1 in d", "'a' in undefined_name", "none in [none]", "not 1 in [1]", "not true == false",
    "true and 1", "0 or 'x'", "'' or none or 0", "1 and 0 and x.y", "not true", "not not 1", "not none", "1 or x.y",
    "(1)", "()", "(1,)", "(1,2)", "1,2", "[]", "[1,]", "{}", "{'a':1,}", "{'a':{'b':[1,2]}}", "{1:2, true:3}", "{none: 1}",
    "l[0]", "l[-1]", "l[5]", "l[5] is defined", "l.0", "l[true]", "s[0]", "s[-1]", "u[2]", "u[-3]", "u[6:8]", "d['b']", "d.b", "d['zz']", "d.zz is defined", "d.items()|list|length", "d['items']",
    "nested[1][1][0]", "nested[2].k", "l[:]", "l[1:]", "l[:-1]", "l[::-1]", "l[::2]", "l[-2:]", "l[5:]", "l[2:0:-1]", "s[1:4]", "s[::-1]", "u[::-1]", "s[-5:]", "s[100:]", "u[1:-1:2]", "(1,2,3)[1:]",
    "range(5)[1:3]", "range(10)[::3]", "range(3)", "range(1,10,3)|list", "range(5,0,-2)|list", "range(3)[1]", "range(3)[-1]", "2 in range(3)", "range(0) == range(1,1)",
    "undefined_name", "d.zz", "[undefined_name]", "undefined_name == other_name", "undefined_name is defined",
    "s|upper", "s | upper | lower", "s|length + 1", "-1|abs", "(-1)|abs", "-n|abs", "s|replace('l','L')|length", "[1,2]|length==2", "s.upper().lower()", "s.split(', ')[1][0]",
    "d.get('b')", "d.get('q')", "d.get('q', 5)", "d.get('q', default=5) if false else 1", "d.keys()", "d.values()", "d.items()", "d.keys()|list", "d.a[4]", "'b' in d.keys()", "d.copy() == d",
    "l.count(1)", "l.index(2)", "(1,2,2).count(2)", "dict(a=1, b=2)", "dict(d, c=3)", "dict([('x', 1)])", "namespace(a=1)", "namespace(a=1).a",
    "[1, 'a', none, true, 1.5, {'k': (1,)}]", "floats", "\"it's\"", "['it\\'s']", "['\"']", "['\\'\"']", "['\\n\\t\\\\']", "['é\\x00\\x7f\\u2028🙂\\u200b']", "'\\x41\\u00e9\\101'", "'a\\\nb'", "'\\d\\w'",
    "1.0 == 1", "1e400", "-1e400", "1e400 - 1e400", "[1e400]", "1//0", "1/0", "1%0", "1.0/0", "0**-1",
    "s.foo", "s.foo.bar", "undefined_name.foo", "undefined_name['x']", "undefined_name()", "undefined_name + 1", "1 + undefined_name", "none + 1", "'a' + 1", "1 + 'a'", "[1] + (1,)", "none.foo", "none.foo.bar",
    "1 < 'a'", "none < 1", "1 in 5", "1 in 'abc'", "[] in d", "{[]: 1}", "s()", "n.x()", "-'a'", "s[undefined_name]", "l['a']", "no[1:]", "undefined_name[1:]", "l['a':]", "l[::0]",
    "d.pop", "d.pop('b')", "l.append(1)", "l.append is defined", "d.update({'x': 1})", "d.__class__", "s.__class__.__mro__", "''.__class__ is defined", "d._x",
    "s is sameas s", "none is sameas none", "1 is sameas 1.0", "true is sameas true",
    "range(100001)", "range(100000)|length", "range('a')", "range()", "range(1,2,0)", "dict(1)",
    "none|string", "true|string", "1.50|string", "'a' if 'a' is string and 1 is not string else 'b'", "[1,2,3] is sequence", "x if x is defined else 'dflt'",
    "s == 'Hello, World' and n > 3 or false", "(1, 2) == (1, 2)", "{'a': 1} == {'a': 1.0}", "{'a': 1} == {'a': 2}", "[[1]] == [[1]]", "'a' ~ 'b' == 'ab'", "1 ~ 2 * 3",
    "joiner is callable", "range is callable", "s.upper is callable", "n is callable", "lipsum is defined", "cycler(1,2).next()", "cycler(1,2).current", "joiner('x')()",
)
GROUPS["filters"] = E(
    "-5|abs", "2.5|abs", "'a'|abs", "none|abs", "d|attr('b')", "s|attr('upper') is callable", "s|attr('nope')",
    "[1,2,3,4,5]|batch(2)|list", "[1,2,3,4,5]|batch(2,'x')|list", "[]|batch(2)|list", "'hELLO wORLD'|capitalize", "u|capitalize", "5|capitalize", "'ab'|center(7)", "'ab'|center(6)", "'abc'|center(6)", "'abc'|center(2)", "s|center|length",
    "l|count", "x|default('q')", "x|d", "''|default('z',true)", "''|default('z')", "none|default('z')", "none|default('z', boolean=true)", "x.y|default(1)",
    "{'b':1,'A':2,'c':0}|dictsort", "{'b':1,'A':2,'c':0}|dictsort(true)", "{'b':1,'A':2,'c':0}|dictsort(false,'value')", "{'b':1,'A':2,'c':0}|dictsort(reverse=true)", "{}|dictsort('x')", "{'b':1}|dictsort(by='nope')",
    "'<a href=\"x\">&\\'</a>'|e", "'<'|escape|escape", "'<'|e|forceescape", "'<b>'|safe", "('<b>'|safe) + '<i>'", "'<i>' + ('<b>'|safe)", "('%s'|safe) % '<b>'", "('<b>'|safe)|upper is escaped", "'<b>'|e ~ '<c>'", "['<b>'|safe]", "1|e", "none|e",
    "100|filesizeformat", "1|filesizeformat", "1000|filesizeformat", "1500000|filesizeformat", "1024|filesizeformat(true)", "123456789|filesizeformat(binary=true)", "0|filesizeformat", "1e30|filesizeformat",
    "l|first", "[]|first", "''|first is defined", "s|first", "d|first", "5|first", "x|first is defined", "'1.5'|float", "'x'|float", "'x'|float(9)", "none|float", "' 2 '|float", "'1e3'|float", "'inf'|float", "'1_0'|float", "true|float",
    "'%s-%d'|format('a', 3)", "'%(x)s'|format(x=1)", "'%.2f'|format(1.005)", "'%5s|%-5s|'|format('a','b')", "'%'|format(1)", "'%d'|format('a')", "'%s'|format",
    "people|groupby('city')|length", "people[:3]|groupby('city')|map('first')|list", "people[:3]|groupby('city', case_sensitive=true)|map(attribute='grouper')|list", "people|groupby('city', default='?')|map(attribute='list')|map('length')|list",
    "'a\\nb\\n\\nc'|indent", "'a\\nb'|indent(2)", "'a\\nb'|indent(2, true)", "'a\\n\\nb'|indent(2, blank=true)", "'a\\nb\\n'|indent", "'a'|indent('> ')", "'a\\nb'|indent('> ', true)", "''|indent", "'a\\r\\nb'|indent", "5|indent", "'\\n'|indent(first=true)",
    "'42'|int", "'42.9'|int", "'x'|int", "'x'|int(5)", "none|int", "3.99|int", "-3.99|int", "'0x1F'|int(0,16)", "'1F'|int(base=16)", "'0b11'|int(0,2)", "' 7 '|int", "'1_000'|int", "true|int", "'  -5'|int", "'010'|int", "'0x10'|int(0, 0)", "'1e3'|int", "x|int",
    "d|items|list|length", "x|items|list", "s|items|list", "[1]|items|list", "l|join", "l|join(',')", "l|join(', ', attribute='x')", "people|join('|', 'name')", "'abc'|join('-')", "d|join(',')", "[1,none,true,1.0]|join(' ')", "l|join(none)", "5|join",
    "l|last", "[]|last", "s|last", "d|last", "s|length", "u|length", "d|length", "x|length", "5|length", "none|length", "'abc'|list", "d|list", "x|list", "5|list", "range(3)|list", "'HeLLo É'|lower", "5|lower", "none|lower",
    "people|map(attribute='name')|list", "people|map(attribute='city', default='?')|list", "['a','b']|map('upper')|join", "['a','b']|map('replace','a','c')|list", "[[1,2],[3]]|map('join','-')|list", "l|map('nope')|list", "l|map|list", "people|map('attr','name')|list", "[[1,2],[3,4]]|map(attribute=1)|list", "[{'a':{'b':1}}]|map(attribute='a.b')|list", "x|map('upper')|list", "none|map('upper')|list", "[1]|map('string')|length", "[[5]]|map(attribute='0')|list",
    "l|max", "l|min", "words|max", "words|min", "words|max(case_sensitive=true)", "people[:3]|max(attribute='age')", "[]|max", "['a',1]|max", "people[:3]|map(attribute='age')|min",
    "[1,0,2]|reject|list", "l|reject('odd')|list", "l|reject('equalto', 1)|list", "people|rejectattr('city')|map(attribute='name')|list", "people|rejectattr('age','none')|map(attribute='name')|list", "people|rejectattr('age','gt',30)|list if false else 1",
    "'aaaa'|replace('a','b')", "'aaaa'|replace('a','b',2)", "'abc'|replace('','-')", "'abc'|replace('','-',2)", "5|replace(5, 6)", "u|replace('日','x')", "'a'|replace", "none|replace('None','x')",
    "l|reverse|list", "s|reverse", "u|reverse", "d|reverse|list", "5|reverse", "2.5|round", "3.5|round", "2.675|round(2)", "42.55|round(1,'floor')", "42.51|round(1,'ceil')", "42|round", "-2.5|round", "1234|round(-2)", "1250|round(-2)", "1350|round(-2)", "1234.5|round(-2)", "2.5|round(0,'x')", "'a'|round", "1e300|round(2)", "0.5|round", "1.5|round",
    "[0,1,'',none,'a']|select|list", "l|select('odd')|list", "l|select('divisibleby',2)|list", "l|select('in',[1,2])|list", "words|select('lower')|list", "l|select('>', 1)|list", "l|select('nope')|list", "people|selectattr('city')|map(attribute='name')|list", "people|selectattr('age','equalto',31)|map(attribute='name')|list", "people|selectattr('city','defined')|list|length", "messages|selectattr('role','equalto','user')|list|length", "x|select|list", "l|select('odd')|length", "l|select('odd')|first", "[]|select('odd')|first is defined", "none|selectattr('x')|list",
    "[1,2,3,4,5]|slice(2)|list", "[1,2,3,4,5]|slice(3,'x')|list", "[]|slice(2)|list", "[1]|slice(0)|list", "l|sort", "l|sort(reverse=true)", "words|sort", "words|sort(case_sensitive=true)", "people[:3]|sort(attribute='age')|map(attribute='name')|list", "people[:3]|sort(attribute='age,name', reverse=true)|map(attribute='name')|list", "[1,'a']|sort", "d|sort", "'bca'|sort", "[[2,1],[1,2]]|sort", "[true, 0, 2]|sort", "[none, 1]|sort", "5|sort",
    "'<p>a  <b>b</b>\\n c</p>'|striptags", "'a <!-- x > --> b'|striptags", "[1,2.5]|sum", "[]|sum", "people[:3]|sum('age')", "[1,2]|sum(start=10)", "['a']|sum", "[[1],[2]]|sum(start=[])", "'hello wORLD-foo (bar) [baz'|title", "\"it's\"|title", "u|title",
    "d|tojson", "{'b':[],'a':{}}|tojson(indent=2)", "{'b':1,'a':'é'}|tojson(separators=(',',':'))", "{'b':1,'a':2}|tojson(sort_keys=true)", "'é🙂\\x7f'|tojson(ensure_ascii=true)", "floats|tojson", "'</script>\\u2028'|tojson", "nested|tojson(indent=4)", "{1:2,none:3,true:4,1.5:5}|tojson", "(1,2)|tojson", "[1e400,-1e400]|tojson", "x|tojson", "range(3)|tojson", "d.items()|tojson", "l|map('string')|tojson", "{'a':[1]}|tojson(indent='--')", "d|tojson(indent=0)", "{'b':1,'a':2}|tojson(indent=1, sort_keys=true, separators=(';','='))", "'\\b\\f\\n\\r\\t\"\\\\\\u0001'|tojson", "big|tojson", "none|tojson", "{(1,2):3}|tojson", "'a'|tojson(true)", "{'z': 1}|tojson(indent=2, ensure_ascii=False)",
    "ws|trim", "'xxaxx'|trim('x')", "'abcba'|trim('ab')", "5|trim", "none|trim", "'\\u3000a\\u2003'|trim", "x|trim", "['a']|trim", "'foo bar baz qux'|truncate(9)", "'foo bar baz qux'|truncate(9,true)", "'foo bar baz qux'|truncate(11)", "'foo bar baz qux'|truncate(11,false,'...',0)", "'foobarbaz'|truncate(6,leeway=0)", "s|truncate(1)", "5|truncate",
    "words|unique|list", "words|unique(true)|list", "[1,1.0,true,2]|unique|list", "people[:3]|unique(attribute='city')|map(attribute='name')|list", "[[1]]|unique|list", "'straße É'|upper", "u|upper",
    "'a b/c?d=é&'|urlencode", "{'a b':'c/d','e':1}|urlencode", "[('a',1),('b','x y')]|urlencode", "5|urlencode", "s|wordcount", "\"it's a b_c 日本\"|wordcount", "{'class':'x','id':none,'y':'<'}|xmlattr", "{}|xmlattr", "{'a':1}|xmlattr(false)", "{'a b':1}|xmlattr", "x|nope", "s|upper(1)", "s|upper|nope.nope",
)
GROUPS["tests"] = E(*[
    "[%s]" % ", ".join("%s is %s" % (value, test) for value in
                       ("1", "0", "2", "1.5", "true", "false", "none", "'a'", "'A'", "''", "[]", "[1]", "(1,)", "{}", "d", "range(3)", "x", "d.items()", "l|map('string')", "namespace()", "range"))
    for test in ("boolean", "callable", "defined", "escaped", "false", "float", "integer", "iterable", "lower", "mapping", "none", "number",
                 "sequence", "string", "true", "undefined", "upper", "not defined", "not none", "eq 1", "ne 1", "equalto 'a'", "sameas none", "in [1, 'a', none]")],
    "3 is odd", "4 is odd", "4 is even", "2.0 is even", "'a' is odd", "9 is divisibleby 3", "9 is divisibleby(2)", "9 is divisibleby 0", "1 is lt 2", "1 is lessthan(2)", "2 is le 2", "2 is gt 1", "2 is greaterthan 1", "2 is ge 3",
    "'upper' is filter", "'nope' is filter", "'odd' is test", "'nope' is test", "1 is in l", "'a' is in 'abc'", "1 is in 5", "x is defined and true", "x is not defined or false", "1 is nope", "1 is eq", "1 is odd(1)", "not 1 is odd", "n is number and n is not string", "[1,2] is iterable and [1,2] is not mapping",
    "undefined_name is none", "undefined_name.x is defined", "d.zz.yy is defined", "1 is not eq 2", "1 is eq 1 is eq true", "'ab' is string and 'ab'|length is eq 2", "1 if x is undefined else 2")
GROUPS["methods"] = E(
    "s.upper()", "s.lower()", "u.upper()", "u.title()", "u.swapcase()", "'ǆ ß'.capitalize()", "'ß'.casefold()", "'ΑΣ'.lower()", "'ﬁx'.title()", "\"they're bill's\".title()", "s.split()", "s.split(',')", "' a  b '.split()", "' a  b '.split(' ')", "'a,b,c'.split(',',1)", "'a b c'.split(none,1)", "'a b  c '.split(maxsplit=1)", "'a,b,c'.rsplit(',',1)", "' a b c '.rsplit(none,1)", "''.split()", "''.split(',')", "'abc'.split('')", "'日本語'.split('本')", "'aXbXc'.rsplit('X')", "'é本é'.rsplit('é', 1)",
    "lines.splitlines()", "lines.splitlines(true)", "'a\\x0bb\\x1cc\\u2028d'.splitlines()", "''.splitlines()", "'\\n'.splitlines()", "ws.strip()", "ws.lstrip()", "ws.rstrip()", "'xxaxx'.strip('x')", "'xxaxx'.lstrip('x')", "'xyaxy'.rstrip('yx')", "'日a日'.strip('日')", "'a'.strip(none)", "'a'.strip(1)", "s.strip('')",
    "s.startswith('Hell')", "s.startswith(('x','H'))", "s.startswith('ello', 1)", "s.endswith('ld')", "s.endswith('or', 0, -2)", "s.endswith('')", "u.startswith('日', 6)", "s.startswith(['H'])", "s.startswith(1)", "'abc'.startswith('', 4)", "'abc'.startswith('', 3)", "'abc'.startswith('c', -1)",
    "s.replace('l','L')", "s.replace('l','L',1)", "s.replace('','-')", "s.replace('l')", "s.replace('l', 1)", "s.find('o')", "s.find('o', 5)", "s.find('zz')", "u.find('本')", "s.rfind('o')", "s.index('W')", "s.index('zz')", "s.rindex('l')", "''.find('')", "'abc'.find('', 4)", "'abc'.find('c', -1)", "'abc'.rfind('', 1, 2)", "s.count('l')", "s.count('')", "'aaaa'.count('aa')", "s.count('o', 5)", "u.rfind('日', 0, 3)",
    "','.join(['a','b'])", "','.join([1])", "','.join('abc')", "''.join(d)", "','.join([])", "s.partition(', ')", "s.partition('zz')", "'a-b-c'.rpartition('-')", "'a'.rpartition('-')", "s.partition('')", "s.removeprefix('Hello')", "s.removesuffix('World')", "s.removesuffix('x')",
    "'ab'.center(7)", "'ab'.center(7,'*')", "'abc'.center(6,'*')", "'ab'.ljust(5,'.')", "'ab'.rjust(5,'日')", "'ab'.ljust(1)", "'ab'.ljust(5,'xx')", "'-42'.zfill(6)", "'42'.zfill(1)", "'a\\tb'.expandtabs()", "'a\\tb\\n\\tc'.expandtabs(4)",
    "'abc'.isalpha()", "'ab1'.isalnum()", "'12'.isdigit()", "'²'.isdigit()", "'²'.isdecimal()", "'½'.isnumeric()", "' \\t'.isspace()", "''.isspace()", "'Ab Cd'.istitle()", "'aB'.islower()", "'AB1'.isupper()", "'a_1'.isidentifier()", "'1a'.isidentifier()", "'é'.isascii()", "'a\\n'.isprintable()", "'日'.isalpha()", "'ǅ'.istitle()",
    "'{} {}'.format(1,'a')", "'{1} {0}'.format(1,2)", "'{a}'.format(a=1)", "'{0[b]} {0.b}'.format(d)", "'{{}}'.format()", "'{:>5}|{:<5}|{:^5}|'.format('a','b','c')", "'{:*^7}'.format('ab')", "'{:05d}'.format(42)", "'{:,}'.format(1234567)", "'{:_}'.format(1234567)", "'{:.2f}'.format(3.14159)", "'{:x} {:X} {:#x} {:o} {:b}'.format(255,255,255,8,5)", "'{:e}'.format(12345.678)", "'{:g}'.format(0.00001)", "'{:%}'.format(0.25)", "'{!r}'.format('a')", "'{!s:>4}'.format(1)", "'{:{}}'.format('a', 5)", "'{:{w}.{p}f}'.format(3.14159, w=8, p=2)", "'{:+d} {: d}'.format(5,5)", "'{:.3}'.format('abcdef')", "'{}'.format(none)", "'{} {}'.format(1)", "'{'.format()", "'}'.format()", "'{0} {}'.format(1)", "'{x}'.format()", "'{:d}'.format('a')", "'{:d}'.format(1.5)", "'{:5}'.format(true)", "'{:5}|'.format(1.5)", "'{:5}|'.format(none)", "'{:5}|'.format([1])", "'{a}'.format_map({'a': 1})", "'{0.__class__}'.format(1)", "'{:,.2f}'.format(1234567.891)", "'{:=+6d}'.format(42)", "'{:<05}'.format('a')", "'{:c}'.format(65)", "'{!a}'.format('é')",
    "'%s' % 1", "'%s %s' % (1,2)", "'%s' % [1,2]", "'%(a)s' % {'a': 1}", "'%d' % 3.9", "'%5.1f|' % 3.14159", "'%-5d|' % 3", "'%+d' % 3", "'%05d' % -3", "'%x' % 255", "'%#x' % 255", "'%o' % 8", "'%e' % 12345.678", "'%g' % 1e10", "'%c' % 65", "'%c' % 'x'", "'%r' % 'a'", "'%a' % 'é'", "'%%'  % ()", "'%s' % (1,2)", "'%s %s' % 1", "'%d' % 'a'", "'%y' % 1", "'%.3s' % 'abcdef'", "'%*d' % (5, 3)", "'%.3d' % 5", "'%s' % none", "'a' % 1", "'a' % {'b': 1}", "'a' % [1]", "'%i' % 5", "'%s' % undefined_name", "'% d' % 5", "'%.0f' % 2.5", "'%G' % 1e-10",
    "s.nope()", "s.upper(1)", "n.upper()", "d.nope()", "l.upper()", "none.upper()", "s.encode is defined", "l.index(9)", "d.get()", "d.get([])", "d.items(1)", "(1).real is defined if false else 1",
)
GROUPS["statements"] = [
    "A\n  {% if true %}\n  B\n  {% endif %}\nC\n", "A\n  {%- if true %}\n  B\n  {% endif %}\nC\n", "A\n  {%+ if true %}\n  B\n  {%+ endif %}\nC\n", "A {%- if true -%} B {%- endif -%} C", "A\n{{ 1 }}\nB\n", "A\n{{- 1 -}}\nB\n\n", "a\n\n", "a\n", "\n", "", "  {# c #}\nx", "x {#- c -#} y", "x\n  {# c #}  \ny", "a{# {{ x }} {% if %} #}b", "{#- a -#}\n b", "{#-#}x", "a\r\nb\rc\n", "  {{ 1 }}\n  {% set a = 1 %}  \nb", "\t{% if true %}\t\nx{% endif %}", "{% if true %}\n\n  x\n{% endif %}", "{% if true -%}\n\n  x\n{%- endif %}\n\ny", "{% if true +%}\nx{% endif +%}\ny", "x{% raw %} {{ a }} {% if %} {% endraw %}y", "x{%- raw -%} {{ a }} {%- endraw -%} y", "  {% raw %}\n  a\n  {% endraw %}\nb", "{% raw %}a{% endraw +%}\nb", "{{ '{{' }}{{ '%}' }}", "{{ {'a': {'b': 1}}}}", "{{ {'a': {'b': 1}} }}", "{% set x = {'a': 1} %}{{ x }}", "{ { % x # }", "{", "a {", "}} %} #}",
    "{% if n == 7 %}a{% elif n == 8 %}b{% else %}c{% endif %}", "{% if x %}a{% elif d %}b{% else %}c{% endif %}", "{% if false %}a{% endif %}", "{% if not x %}a{% endif %}",
    "{% for i in l %}{{ i }}{% endfor %}", "{% for i in [] %}x{% else %}empty{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}", "{% for i in none %}{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% for i in x %}a{% else %}b{% endfor %}", "{% for a, b in [[1,2],[3]] %}{{ a }}{% endfor %}", "{% for a, (b, c) in [[1,[2,3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in ['xy'] %}{{ b }}{{ a }}{% endfor %}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}", "{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}", "{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}", "{% for i in l %}{{ loop.cycle('a','b') }}{% endfor %}", "{% for i in [1,1,2,2,1] %}{{ loop.changed(i) }}{% endfor %}", "{% for i in l %}{% for j in 'ab' %}{{ loop.index }}{{ loop.length }}{% endfor %}{{ loop.index }}{% endfor %}", "{{ loop is defined }}{% for i in l %}{{ loop }}{% endfor %}", "{% for i in l if i > 1 %}{{ i }}{{ loop.index }}{{ loop.length }}{% endfor %}", "{% for i in l if i > 9 %}x{% else %}none{% endfor %}", "{% for i in l %}{{ loop.nope is defined }}{% endfor %}",
    "{% for x in [1,2,3] %}{% if x==2 %}{% continue %}{% endif %}{{x}}{% endfor %}", "{% for x in [1,2,3] %}{% if x==2 %}{% break %}{% endif %}{{x}}{% endfor %}", "{% for x in [1,2] %}{% for y in [1,2,3] %}{% if y==2 %}{% break %}{% endif %}{{x}}{{y}} {% endfor %}{% endfor %}", "{% for x in l %}{% break %}{% else %}e{% endfor %}", "{% break %}", "{% for i in l recursive %}{{ i }}{% endfor %}", "{% for i in nested[:2] recursive %}{% if i is iterable %}[{{ loop(i) }}]{% else %}{{ i }}@{{ loop.depth }}{% endif %}{% endfor %}", "{% for i in l %}{{ loop(l) }}{% endfor %}", "{% for i in l %}{% set j = i %}{% endfor %}{{ j is defined }}{{ i is defined }}", "{% set j = 0 %}{% for i in l %}{{ j }}{% set j = i %}{% endfor %}{{ j }}", "{% for i in l|map('string') %}{{ loop.length }}{{ loop.last }}{% endfor %}",
    "{% set a = 1 %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set (a, b) = [1, 2] %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set a = 1, 2 %}{{ a }}", "{% set a %}x{{ n }}{% endset %}{{ a }}|{{ a|length }}", "{% set a | upper %}x{{ n }}{% endset %}{{ a }}", "{% set a | replace('x','y') | upper %}x{% endset %}{{ a }}", "{% set ns = namespace(i=0, s='') %}{% for m in [1,2,3] %}{% set ns.i = ns.i + m %}{% set ns.s %}{{ ns.s }}{{ m }}{% endset %}{% endfor %}{{ ns.i }}{{ ns.s }}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b is defined }}{{ ns['a'] if false else '' }}", "{% set d.x = 1 %}", "{% set qq.x = 1 %}", "{% if true %}{% set a = 1 %}{% endif %}{{ a }}", "{% set true = 1 %}", "{% set a.b.c = 1 %}",
    "{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, c=3) }}|{{ m(a=1, b=4) }}|{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(5) }}", "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% set g = 1 %}{% macro m() %}{{ g }}{% set g = 2 %}{{ g }}{% endmacro %}{{ m() }}{{ g }}", "{% macro m() %}{{ later }}{% endmacro %}{% set later = 3 %}{{ m() }}", "{% macro m(x) %}[{{ caller() }}]{% endmacro %}{% call m(1) %}body{{ n }}{% endcall %}", "{% macro m() %}{% for i in [1,2] %}{{ caller(i, 'z') }}{% endfor %}{% endmacro %}{% call(a, b) m() %}<{{ a }}{{ b }}>{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}", "{% macro m(a) -%}\n  {{ a }}\n{%- endmacro %}{{ m(1) ~ m(2) }}|{{ m(3)|length }}", "{% macro m(a,a2=1,b) %}{% endmacro %}", "{% macro m(*a) %}{% endmacro %}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'x': 2}) }}",
    "{% filter upper %}a{{ n }}b{% endfilter %}", "{% filter replace('a','b')|upper %}aa{% endfilter %}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}", "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% for i in l %}{% filter upper %}a{% if i == 1 %}{% break %}{% endif %}b{% endfilter %}{% endfor %}", "{% set z = 1 %}{% filter upper %}{% set z = 2 %}{{ z }}{% endfilter %}{{ z }}",
    "{% if %}{% endif %}", "{% if true %}", "{% endif %}", "{% for %}{% endfor %}", "{% for a in l %}", "{% nope %}", "{{ }}", "{{ 1 2 }}", "{{ 1 + }}", "{{ (1 }}", "{{ [1 }}", "{{ 1) }}", "{{ 'abc }}", "{{ a", "{% if a", "{# x", "{% raw %}x", "{{ 1 | }}", "{{ x is }}", "{{ a.}}", "{{ a..b }}", "{{ $ }}", "{{ a = 1 }}", "{{ 'a' 'b' 1 }}", "{{ f(a=1, 2) }}", "{% set %}", "{% set 1 = 2 %}", "{% macro %}{% endmacro %}", "{% call x %}{% endcall %}", "{% if true %}{% endfor %}", "{% elif x %}", "{{ 1 if }}", "{{ not }}", "{{ a b }}", "{% for i in l %}{% else %}{% else %}{% endfor %}", "{{ '\\ud83d' }}", "{{ 012 }}", "{{ 1.2.3 }}", "{{ [1,,2] }}", "{{ {1} }}", "{{ {,} }}", "{{ (,) }}", "{% if true %}{{ x|nope }}{% endif %}", "{% if false %}{{ x|nope }}{% endif %}ok", "{{ 1 if true else x|nope }}", "{% if false %}{{ x is nope }}{% endif %}ok",
    "{{ raise_exception('boom <b>') }}", "{{ raise_exception(5) }}", "{{ strftime_now('%d %b %Y %H:%M:%S %A %B %j %y %p %I %-d %w %%') }}", "{{ strftime_now('') }}|{{ strftime_now('%f|%z|%Z|x') }}", "{{ strftime_now() }}", "{{ strftime_now('日%Y') }}",
    "{{ messages[::-1]|map(attribute='role')|join(',') }}", "{{ messages[1].content.split('</think>')[-1].lstrip('\\n') }}", "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.arguments|tojson }}{% endfor %}{% endif %}\n{% endfor %}", "{%- for m in messages -%}\n  {{- '<' + m['role'] + '>' }}\n{%- endfor -%}\nend", "{% if messages[0]['role'] == 'system' %}{% set messages = messages[1:] %}{% endif %}{{ messages|length }}", "{% set o = namespace(l=[]) %}{% for i in l %}{% set o.l = o.l + [i * 2] %}{% endfor %}{{ o.l }}", "{{ (messages|last).tool_calls[0]['function']['name'] }}", "{{ messages|map(attribute='content')|select('string')|list|length }}",
    "{% set c = cycler('a','b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}", "{% set j = joiner('|') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}", "{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "{% print 1 %}",
]


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def case_for(env, template):
    case = {"template": template}
    try:
        case["expected"] = env.from_string(template).render(**json.loads(json.dumps(VARIABLES)))
        case["expected"].encode()
    except Exception as error:  # whatever transformers would let out
        case.pop("expected", None)
        case["error"] = type(error).__name__
        if type(error) is jinja2.exceptions.TemplateError:
            case["message"] = str(error)
    assert " at 0x" not in case.get("expected", ""), template  # an address differs from run to run
    return case


def seeds(group, cases):
    good = [c["template"] for c in cases if "expected" in c]
    variables = json.dumps(VARIABLES, ensure_ascii=False, separators=(",", ":"))
    for i in range(0, len(good), SEED_TEMPLATES):
        yield "fuzz/jinja/%s-%02d" % (group, i // SEED_TEMPLATES), "\n".join(good[i:i + SEED_TEMPLATES]) + "\0" + variables


def main():
    env, differs = environment(), False
    texts = {"jinja/variables.json": json.dumps(VARIABLES, ensure_ascii=False, indent=1) + "\n"}
    for group, templates in GROUPS.items():
        assert len(set(templates)) == len(templates), [t for t in templates if templates.count(t) > 1]
        cases = [case_for(env, t) for t in templates]
        texts["jinja/%s.json" % group] = "[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n"
        texts.update(seeds(group, cases))
    for name, text in texts.items():
        path = DATA / name
        if "--check" in sys.argv:
            if path.read_bytes() != text.encode():
                print(path, "differs")
                differs = True
        else:
            path.write_bytes(text.encode())
    return differs


if __name__ == "__main__":
    sys.exit(main())
