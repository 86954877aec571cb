#!/usr/bin/env bash
# An MLflow tracking server for many machines: PostgreSQL keeps runs and registry, and all artifacts go through the
# server, so that its clients reach neither the database nor the store of artifacts.
#
# Once, on the machine of the database; the server makes its tables itself:
#   createuser --pwprompt mlflow
#   createdb --owner mlflow mlflow
# Then, in the environment of requirements.lock, or after `pip install 'simcse-platform[postgres]'`:
#   export MLFLOW_BACKEND_STORE_URI=postgresql://mlflow@DBHOST:5432/mlflow    # its password in PGPASSWORD or ~/.pgpass
#   export MLFLOW_ARTIFACTS_DESTINATION=/srv/mlflow    # a folder, or s3://BUCKET/FOLDER where boto3 is installed
#   export MLFLOW_HOST=0.0.0.0                         # default: 127.0.0.1, for this machine alone
#   cluster/mlflow/server.sh
# Runs are recorded there by `--tracking http://HOST:5000`.
#
# The variables are MLflow's own, and so are MLFLOW_PORT (5000), MLFLOW_WORKERS (4) and MLFLOW_SERVER_ALLOWED_HOSTS, the
# names other than localhost and private addresses by which clients call it. Options go to `mlflow server`.
# It asks nobody for a password: keep it in a private network, or see `--app-name basic-auth`.
# After an upgrade of MLflow: python -m mlflow db upgrade postgresql+psycopg2://mlflow@DBHOST:5432/mlflow
set -euo pipefail

refuse() {
    echo "$1" >&2
    exit 2
}

[[ -n ${MLFLOW_BACKEND_STORE_URI:-} ]] ||
    refuse "MLFLOW_BACKEND_STORE_URI is not set: export it as postgresql://USER@HOST:5432/DATABASE"
[[ -n ${MLFLOW_ARTIFACTS_DESTINATION:-} ]] ||
    refuse "MLFLOW_ARTIFACTS_DESTINATION is not set: export the folder, or s3://BUCKET/FOLDER, that keeps artifacts"

case $MLFLOW_BACKEND_STORE_URI in
    # Without a driver's name SQLAlchemy 2.1 takes psycopg 3, which is not ours.
    postgres://* | postgresql://*) MLFLOW_BACKEND_STORE_URI=postgresql+psycopg2://${MLFLOW_BACKEND_STORE_URI#*://} ;;
    postgresql+psycopg2://*) ;;
    *) refuse "MLFLOW_BACKEND_STORE_URI names no PostgreSQL: export it as postgresql://USER@HOST:5432/DATABASE" ;;
esac
if [[ $MLFLOW_ARTIFACTS_DESTINATION != *://* ]] && ! mkdir -p "$MLFLOW_ARTIFACTS_DESTINATION" 2>/dev/null; then
    refuse "MLFLOW_ARTIFACTS_DESTINATION: $MLFLOW_ARTIFACTS_DESTINATION cannot be made, name a folder that can"
fi

# In the environment rather than among the arguments, where every user of the machine could read a password in it.
export MLFLOW_BACKEND_STORE_URI
export MLFLOW_DISABLE_TELEMETRY=${MLFLOW_DISABLE_TELEMETRY:-true}
export MLFLOW_SERVER_ENABLE_JOB_EXECUTION=${MLFLOW_SERVER_ENABLE_JOB_EXECUTION:-false}

# MLflow would try for minutes and end in a traceback. This asks as it does, by the same driver.
python - <<'ASK'
import os
import sys

try:
    import sqlalchemy

    uri = os.environ["MLFLOW_BACKEND_STORE_URI"]
    sqlalchemy.create_engine(uri, connect_args={"connect_timeout": 5}).connect().close()
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is not installed: pip install 'simcse-platform[postgres]'")
except Exception as error:
    reason = " ".join(str(getattr(error, "orig", error)).split())
    sys.exit(f"no connection to PostgreSQL: start it, or correct MLFLOW_BACKEND_STORE_URI ({reason})")
ASK

exec python -m mlflow server --serve-artifacts --artifacts-destination "$MLFLOW_ARTIFACTS_DESTINATION" "$@"
