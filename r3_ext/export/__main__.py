import sys

from r3_ext.export.lay import main

if __name__ == "__main__":
    sys.exit(main())
