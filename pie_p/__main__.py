"""`python -m pie_p` is `pie-p`."""

from pie_p.cli import main

main()
