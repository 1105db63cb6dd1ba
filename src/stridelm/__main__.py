"""`python -m stridelm`, and `torchrun --module stridelm train ...` for several processes."""

from stridelm.cli.app import main

if __name__ == "__main__":
    main()
