"""The jobs for spark-submit, which wants a file: ``spark-submit martlet_pipeline.py NAME ...``.

``martlet pipeline --submit-file`` tells where it is.
"""

import sys

from martlet.cli.pipeline import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
