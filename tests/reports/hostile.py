"""Texts that try to become something else: markup, scripts, formulas, templates."""

_TAGS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "</svg><script>alert(1)</script>",
    "<a href='javascript:alert(1)'>x</a>",
    "<iframe src=//evil.example></iframe>",
    "<style>*{display:none}</style>",
    "</style><b>x</b>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content=0>",
    "<base href=//evil.example>",
    "<!--",
    "-->",
    "--!><b>",
    "<![CDATA[",
    "]]>",
    "</title><b>x</b>",
    "</bdi></p><hr>",
    "</td></tr></table><h1>x</h1>",
    "<details open ontoggle=alert(1)>",
    "<b",
    "</",
    "<?x",
    "<form action=//evil.example><input autofocus onfocus=alert(1)>",
    "</textarea>",
    "<plaintext>",
    "<math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
    "<object data=x>",
    "<embed src=x>",
)
_ATTRIBUTES = (
    '" onmouseover="alert(1)',
    "' onmouseover='alert(1)",
    '"><b>',
    "'><b>",
    "` onclick=alert(1)",
    '" style="position:fixed',
    '" href="javascript:alert(1)',
    'x" data-v="1',
    '" id="data',
    '"/><b x="',
)
_ADDRESSES = (
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "//evil.example/x.js",
    "https://evil.example/?q=",
    "url(https://evil.example/x)",
    "@import url(//evil.example)",
)
_TEMPLATES = (
    "{{ 7 * 7 }}",
    "{% raw %}",
    "{{ config }}",
    "{# x #}",
    "${7*7}",
    "#{7*7}",
    "<%= 7*7 %>",
    "%s %n",
    "{{ ''.__class__.__mro__ }}",
    "{0.__class__}",
    "\\u003cscript\\u003e",
    "&lt;script&gt;",
    "&#60;b&#62;",
)
_SHEETS = ("=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("//evil.example")', "|cmd")
_CHARACTERS = (
    "\x00",
    "a\x00b",
    "\u202egnp.exe",
    "\u2066x",
    "\u200d\u200d",
    "e\u0301" * 20,
    "\ud800",
    "x\udfffy",
    "\ufffe",
    "\x1b[31mred\x1b[0m",
    "\x07",
    "\u2028",
    "\u2029",
    "a\nb",
    "a\r\nb",
    "\x85",
    "👩‍👩‍👧‍👦",
    "שלום",
    "𝕏",
    "Z" + "\u0308\u0323" * 60,
    "long " * 2_000,
    "w" * 10_000,
)
_MARKDOWN = (
    "| a | b |",
    "[x](javascript:alert(1))",
    "![x](//evil.example/x.png)",
    "`code`",
    "# head",
)

SINGLE = (*_TAGS, *_ATTRIBUTES, *_ADDRESSES, *_TEMPLATES, *_SHEETS, *_CHARACTERS, *_MARKDOWN)
_NESTED = tuple(f"{one}{other}" for one in _ATTRIBUTES for other in (*_TAGS, *_ADDRESSES))

PAYLOADS: tuple[str, ...] = (*SINGLE, *_NESTED)[:300]
UNICODE = _CHARACTERS

assert len(PAYLOADS) == 300
