"""The real thing: server, users and operator as programs that talk HTTPS. They drive the machines, no more."""

from basecagg.extras import require

for _module in ("starlette", "uvicorn", "httpx"):
    require(_module, extra="service", needed_for="a federation over the network")
