"""Surroundings that nobody sets up: variables, limits, streams and folders, for commands of each kind."""

from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.attacks.attack import Attack
from tests.fuzz.attacks.inputs import words_of

_COMMANDS = ("cut", "encode", "finetune", "evaluate", "export", "report", "status", "combine", "study", "compare")
_VARIABLES = {
    "HOME": ("", "/nowhere", "/dev/null", "p.csv"),
    "TMPDIR": ("/nowhere", "/proc", "/dev/null", ""),
    "TERM": ("dumb", "", "x" * 5000),
    "COLUMNS": ("0", "1", "-5", "abc", "9" * 30),
    "LINES": ("0", "abc"),
    "LC_ALL": ("C", "xx_YY", ""),
    "TZ": (":/etc/passwd", "x" * 300),
    "XDG_CACHE_HOME": ("/dev/null", "/proc"),
    "MPLCONFIGDIR": ("/dev/null", "/proc"),
    "HF_HOME": ("/dev/null", "/proc"),
    "PATH": ("", "/nowhere"),
    "CUDA_VISIBLE_DEVICES": ("abc", "-1", "99"),
    "PYTHONHASHSEED": ("abc",),
    "NO_COLOR": ("1",),
}
_LIMITED = "import resource; resource.setrlimit(resource.{limit}, ({value}, {value}))"
_LIMITS = {
    "RLIMIT_FSIZE": ("0", "100", "10_000"),
    "RLIMIT_NOFILE": ("8", "16", "64"),
    "RLIMIT_NPROC": ("0",),
    "RLIMIT_STACK": ("100_000",),
    "RLIMIT_CORE": ("0",),
    "RLIMIT_AS": ("int(open('/proc/self/statm').read().split()[0]) * 4096 + (30 << 20)",),
}
_ODD = {
    "a working folder that is gone": "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')",
    "no rights for what is made": "os.umask(0o777)",
    "a closed standard input": "os.close(0)",
    "a closed standard output": "os.close(1)",
    "a closed standard error": "os.close(2)",
    "all streams closed": "[os.close(n) for n in range(3)]",
    "a full standard output": "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
    "a full standard error": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "standard output that is only read": "os.dup2(os.open('/dev/null', os.O_RDONLY), 1)",
    "ASCII streams": "sys.stdout, sys.stderr = (open(n, 'w', encoding='ascii', closefd=False) for n in (1, 2))",
    "ignored signals": "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 13, 15, 17, 25)]",
    "a seed of others": "import random, numpy; random.seed(0); numpy.random.seed(0); torch.manual_seed(0)",
}


def attacks(home: Path) -> Iterator[Attack]:
    """Each with one thing that is odd."""
    ways = {f"{name}={value[:20]!a}": f"os.environ[{name!r}] = {value!r}"
            for name, values in _VARIABLES.items() for value in values}  # fmt: skip
    ways |= {f"no {name}": f"os.environ.pop({name!r}, None)" for name in ("HOME", "TMPDIR", "PATH", "USER", "TERM")}
    ways |= {f"{limit} {value[:12]}": _LIMITED.format(limit=limit, value=value)
             for limit, values in _LIMITS.items() for value in values}  # fmt: skip
    for command in _COMMANDS:
        for name, before in (ways | _ODD).items():
            code = f"{before}\nimport tempfile; tempfile.tempdir = None"
            heard = not name.endswith(("error", "closed"))
            yield Attack(name=f"{command}, {name}", words=words_of(command), before=code, heard=heard)
