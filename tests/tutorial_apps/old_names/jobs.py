from oldapp import app


@app.task
def crawl(url):
    return url


@app.task(default_retry_delay=5 * 60, max_retries=10)
def fetch(url):
    try:
        return open(url).read()
    except OSError as exc:
        raise fetch.retry(exc=exc)
