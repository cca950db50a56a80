# Customers who order all the time: `bash customers.sh FIRST`; Ctrl-C ends it.
order=$1
trap 'echo "ordered: order-$1 to order-$((order - 1))"; exit' INT
while true; do
  curl -K curl.conf --fail --output /dev/null --write-out "" -X POST "http://shop/orders/order-$order" &&
    echo "order-$order" >>ordered.txt
  order=$((order + 1))
done
