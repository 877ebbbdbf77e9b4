import json, os, ssl, sys, time, urllib.error, urllib.request

SECRET = "/var/run/secrets/kubernetes.io/serviceaccount"
API = "https://kubernetes.default.svc/apis/"
failed = []


def check(what, ask):
    """Ask for up to half a minute: the operator may just have been installed."""
    for attempt in range(15):
        try:
            wrong = ask()
        except urllib.error.HTTPError as error:
            wrong = f"{error.code} {error.read().decode(errors='replace').strip()[:500]}"
        except OSError as error:
            wrong = str(error)
        if not wrong:
            break
        time.sleep(2)
    print(f"{'FAILED' if wrong else 'ok    '} {what}{': ' + wrong if wrong else ''}", flush=True)
    if wrong:
        failed.append(what)


def ready():
    urllib.request.urlopen(os.environ["READY"], timeout=5).read()


def api(path):
    request = urllib.request.Request(API + path)
    request.add_header("Authorization", "Bearer " + open(f"{SECRET}/token").read().strip())
    trust = ssl.create_default_context(cafile=f"{SECRET}/ca.crt")
    return json.load(urllib.request.urlopen(request, timeout=5, context=trust))


def served(kind):
    plural, _, group = kind.partition(".")
    version = api(group)["preferredVersion"]["groupVersion"]
    return "" if plural in [resource["name"] for resource in api(version)["resources"]] else "not there"


check("the operator is ready", ready)
for kind in os.environ["KINDS"].split():
    check(f"{kind} is served", lambda: served(kind))
sys.exit(1 if failed else 0)
